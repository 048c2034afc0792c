/* SPDX-License-Identifier: Apache-2.0 */
#define GDR_API_MAJOR_VERSION 2
#define GDR_API_MINOR_VERSION 5

void gdr_runtime_get_version(int *major, int *minor);
