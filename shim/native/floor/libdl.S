#include "floor/stub.h"
STUB(dladdr)
STUB(dlclose)
STUB(dlerror)
STUB(dlopen)
STUB(dlsym)
    ret
