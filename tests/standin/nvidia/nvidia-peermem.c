// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// A stand-in for the driver's module that lets NICs into GPU memory: its name and its version.
#include <linux/module.h>

static int __init standin_init(void)
{
	return 0;
}

static void __exit standin_exit(void)
{
}

module_init(standin_init);
module_exit(standin_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(NVIDIA_VERSION);
MODULE_DESCRIPTION("Stand-in for nvidia_peermem in tests");
