#pragma once

#include <functional>
#include <list>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "base/limits.hpp"

namespace ddprun::agent {

/// Has the kernel report when processes of this machine, or of this process's cgroup, wait for
/// memory (PSI triggers). Stays silent if the kernel has no triggers or the user may not have them.
/// Lives on the thread of `io`; outlives the loop.
class MemoryWatch {
public:
    /// `on_short` is called at most once in Limits::memory_stall_window for each of the two.
    MemoryWatch(boost::asio::io_context& io, const Limits& limits, std::function<void()> on_short);

private:
    using File = boost::asio::posix::stream_descriptor;

    void watch(const std::string& path, const std::string& trigger);
    void wait(File& file);

    boost::asio::io_context& io_;
    std::function<void()> on_short_;
    std::list<File> files_;
};

}  // namespace ddprun::agent
