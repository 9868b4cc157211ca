#include "base/error.hpp"

#include <cerrno>
#include <system_error>

namespace ddprun {

namespace {

ErrorCode code_of(int errno_value) {
    switch (errno_value) {
        case ENOENT:
        case ENOTDIR:
            return ErrorCode::NotFound;
        case EACCES:
        case EPERM:
            return ErrorCode::PermissionDenied;
        case EADDRINUSE:
            return ErrorCode::AddressInUse;
        case ECONNREFUSED:
        case EHOSTUNREACH:
        case ENETUNREACH:
            return ErrorCode::Unreachable;
        case ECONNRESET:
        case EPIPE:
            return ErrorCode::ConnectionLost;
        case ETIMEDOUT:
            return ErrorCode::TimedOut;
        default:
            return ErrorCode::System;
    }
}

}  // namespace

Error system_error(int errno_value, const std::string& what) {
    return Error{code_of(errno_value), what + ": " + std::generic_category().message(errno_value)};
}

}  // namespace ddprun
