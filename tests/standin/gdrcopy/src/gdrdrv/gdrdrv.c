// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// A stand-in for GDRCopy's kernel module: it needs the driver's symbol, as the real one does.
#include <linux/fs.h>
#include <linux/module.h>

#include "nv-p2p.h"

static int gdrdrv_open(struct inode *inode, struct file *file)
{
	return nvidia_p2p_get_pages(0, 0);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = gdrdrv_open,
};

static int major;

static int __init gdrdrv_init(void)
{
	major = register_chrdev(0, "gdrdrv", &operations);
	return major < 0 ? major : 0;
}

static void __exit gdrdrv_exit(void)
{
	unregister_chrdev(major, "gdrdrv");
}

module_init(gdrdrv_init);
module_exit(gdrdrv_exit);
#ifdef GDRDRV_OPENSOURCE_NVIDIA
MODULE_LICENSE("Dual MIT/GPL");
#else
MODULE_LICENSE("MIT");
#endif
MODULE_VERSION("2.5.2");
