/* The handshake, by which a process reports to the node's agent which slot it has claimed. */
#pragma once

#include "mechanism/region.h"

/* Sends the slot that this process has just claimed to the socket DIRECTORY/handshake. Never
 * blocks, keeps no descriptor, starts no thread and raises no signal. If no agent listens, nothing
 * is sent, and the slot works all the same. Changes errno. */
void penstock_handshake_send(const penstock_region *region, const char *directory);
