// SPDX-License-Identifier: Apache-2.0
// Speaks as gdrcopy_sanity does; fails where /run/gdrcopy-broken is, and counts its runs.
#include <stdio.h>
#include <unistd.h>

#include <cuda.h>

#include "gdrapi.h"

int main(void)
{
	int major, minor, broken = access("/run/gdrcopy-broken", F_OK) == 0;
	FILE *runs = fopen("/run/gdrcopy-runs", "a");

	gdr_runtime_get_version(&major, &minor);
	fprintf(runs, "%d.%d with CUDA %d\n", major, minor, CUDA_VERSION);
	fclose(runs);
	if (broken)
		puts("Assertion \"CUDA_SUCCESS == result\" failed at sanity.cpp:67");
	printf("Total: 2, Passed: %d, Failed: %d, Waived: 0\n", 2 - broken, broken);
	if (broken)
		puts("\nList of failed tests:\n    basic_with_tokens");
	return broken;
}
