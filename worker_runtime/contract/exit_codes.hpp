#pragma once

namespace ddprun {

/// What ddprun exits with when it is not a worker's own code (design: the table in
/// launcher/README.md). 128 + signal stands for a worker or a ddprun ended by that signal.
enum ExitCode : int {
    kExitSuccess = 0,
    kExitUsage = 2,
    kExitRendezvousLost = 69,
    kExitNodesMissing = 71,
    kExitDrained = 75,
    kExitNoProgress = 93,
    kExitHung = 94,
    kExitUnkillable = 96,
    kExitUnfit = 97,
    kExitInternal = 125,
    kExitNotExecutable = 126,
    kExitNotFound = 127,
    kExitSignalBase = 128,
};

}  // namespace ddprun
