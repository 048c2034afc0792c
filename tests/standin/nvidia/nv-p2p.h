/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
#ifndef STANDIN_NV_P2P_H
#define STANDIN_NV_P2P_H

#include <linux/types.h>

int nvidia_p2p_get_pages(u64 address, u64 length);

#endif
