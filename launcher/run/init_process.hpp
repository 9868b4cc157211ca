#pragma once

namespace ddprun::launcher {

/// In a container ddprun may be process 1: every orphan there becomes its child, and the kernel
/// ignores whatever signal it has no handler for. Then this process forks and stays an init: it
/// reaps, passes signals on, and exits as its child does. Returns in the child, or at once where
/// this process is not the first; call it before anything else is started.
void stay_behind_as_init();

}  // namespace ddprun::launcher
