/* Tells the node's agent which process has which slot. */
#pragma once

#include "mechanism/region.h"

/* Says at DIRECTORY/handshake which slot this process has just claimed. Never waits, keeps no
 * descriptor, starts no thread, raises no signal; without an agent that listens nothing happens, as
 * slots work without it. Changes errno. */
void penstock_handshake_say(const penstock_region *region, const char *directory);
