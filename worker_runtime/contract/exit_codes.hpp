#pragma once

#include "base/error.hpp"

namespace ddprun {

/// The exit codes of ddprun that are not a worker's own code (design: the table in
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
    kExitEnded = 98,
    kExitInternal = 125,
    kExitNotExecutable = 126,
    kExitNotFound = 127,
    kExitSignalBase = 128,
};

/// The exit code of a program that could not begin for this reason: kExitUsage if the user can mend
/// it, kExitRendezvousLost if the other side cannot be reached, `otherwise` for any other reason.
[[nodiscard]] constexpr int exit_code_of(ErrorCode code, int otherwise) {
    switch (code) {
        case ErrorCode::InvalidArgument:
        case ErrorCode::NotFound:
        case ErrorCode::PermissionDenied:
        case ErrorCode::Refused:
        case ErrorCode::BadSecret:
        case ErrorCode::BadMessage:
            return kExitUsage;
        case ErrorCode::Unreachable:
        case ErrorCode::ConnectionLost:
        case ErrorCode::TimedOut:
            return kExitRendezvousLost;
        case ErrorCode::AddressInUse:
        case ErrorCode::LimitExceeded:
        case ErrorCode::System:
            break;
    }
    return otherwise;
}

}  // namespace ddprun
