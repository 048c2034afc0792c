// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// A stand-in for NVIDIA's open kernel module: its parameters and its /proc files, no hardware.
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/version.h>

#include "nv-p2p.h"

// Permission 0, as in the real driver: /sys/module/nvidia/parameters shows none of them.
static int NVreg_EnableStreamMemOPs;
module_param(NVreg_EnableStreamMemOPs, int, 0);
static int NVreg_DmaRemapPeerMmio = 1;
module_param(NVreg_DmaRemapPeerMmio, int, 0);
static int NVreg_EnablePCIERelaxedOrderingMode;
module_param(NVreg_EnablePCIERelaxedOrderingMode, int, 0);
static char *NVreg_RegistryDwords = "";
module_param(NVreg_RegistryDwords, charp, 0);

static int show_params(struct seq_file *file, void *unused)
{
	seq_printf(file, "EnableStreamMemOPs: %u\n", NVreg_EnableStreamMemOPs);
	seq_printf(file, "DmaRemapPeerMmio: %u\n", NVreg_DmaRemapPeerMmio);
	seq_printf(file, "EnablePCIERelaxedOrderingMode: %u\n", NVreg_EnablePCIERelaxedOrderingMode);
	seq_printf(file, "RegistryDwords: \"%s\"\n", NVreg_RegistryDwords);
	return 0;
}

static int show_version(struct seq_file *file, void *unused)
{
	seq_printf(file, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build\n",
		   NVIDIA_VERSION);
	return 0;
}

int nvidia_p2p_get_pages(u64 address, u64 length)
{
	return -ENODEV;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

static struct proc_dir_entry *directory;

static int __init standin_init(void)
{
	directory = proc_mkdir("driver/nvidia", NULL);
	if (!directory)
		return -ENOMEM;
	if (!proc_create_single("params", 0444, directory, show_params) ||
	    !proc_create_single("version", 0444, directory, show_version)) {
		proc_remove(directory);
		return -ENOMEM;
	}
	return 0;
}

static void __exit standin_exit(void)
{
	proc_remove(directory);
}

module_init(standin_init);
module_exit(standin_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(NVIDIA_VERSION);
MODULE_DESCRIPTION("Stand-in for the NVIDIA driver in tests");
