#pragma once

#include <dlfcn.h>

namespace ddprun::launcher {

/// Deletes what dlopen() has returned.
struct LibraryClose {
    void operator()(void* library) const { ::dlclose(library); }
};

}  // namespace ddprun::launcher
