// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// Not built: GDRCopy's Makefile finds the driver's sources by this file's name.
