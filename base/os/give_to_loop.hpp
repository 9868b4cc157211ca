#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/system/error_code.hpp>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun {

/// `descriptor`, which has none, has `fd` from now on, and its loop can wait for it. Failure: the
/// kernel has no memory for that, or this user has no watch left (fs.epoll.max_user_watches); then
/// `fd` is closed. Asio's constructors throw in that case.
[[nodiscard]] inline Result<void> give_to_loop(boost::asio::posix::stream_descriptor& descriptor,
                                               UniqueFd fd) {
    boost::system::error_code failure;
    descriptor.assign(fd.get(), failure);
    if (failure) {
        return system_error(failure.value(), "having the kernel watch a descriptor");
    }
    (void)fd.release();
    return {};
}

}  // namespace ddprun
