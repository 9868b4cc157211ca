#include "rendezvous/server/open_files.hpp"

#include <sys/resource.h>

namespace ddprun::rdzv {

void raise_open_files() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

}  // namespace ddprun::rdzv
