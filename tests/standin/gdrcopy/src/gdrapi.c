// SPDX-License-Identifier: Apache-2.0
#include "gdrapi.h"

void gdr_runtime_get_version(int *major, int *minor)
{
	*major = GDR_API_MAJOR_VERSION;
	*minor = GDR_API_MINOR_VERSION;
}
