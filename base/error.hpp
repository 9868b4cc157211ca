#pragma once

#include <string>

namespace ddprun {

/// The kind of failure that an Error is. Callers branch on it; the text is for people.
enum class ErrorCode {
    InvalidArgument,   ///< a flag, variable or value that the user gave cannot be used
    NotFound,          ///< a file, program or name does not exist
    PermissionDenied,  ///< it exists and this user may not use it
    AddressInUse,      ///< another socket listens there
    Unreachable,       ///< a host or endpoint could not be resolved or refused the connection
    Refused,           ///< the peer understood and said no
    BadSecret,         ///< the two sides do not hold the same job secret
    BadMessage,        ///< bytes that the protocol does not allow
    LimitExceeded,     ///< a bound of Limits would be passed
    TimedOut,          ///< the time for it is over
    ConnectionLost,    ///< the other side is gone
    System,            ///< a system call failed for a reason not listed above
};

/// An expected failure: one line that says what failed, the object, the values, and what to do.
struct Error {
    ErrorCode code = ErrorCode::System;
    std::string what;
};

/// "<what>: <text of errno_value>" as an Error whose code fits the errno.
[[nodiscard]] Error system_error(int errno_value, const std::string& what);

}  // namespace ddprun
