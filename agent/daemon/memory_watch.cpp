#include "agent/daemon/memory_watch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/os/read_memory_room.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

MemoryWatch::MemoryWatch(boost::asio::io_context& io, const Limits& limits,
                         std::function<void()> on_short)
    : io_(io), on_short_(std::move(on_short)) {
    using std::chrono::microseconds;
    const std::string trigger = fmt::format("some {} {}", microseconds(limits.memory_stall).count(),
                                            microseconds(limits.memory_stall_window).count());
    watch("/proc/pressure/memory", trigger);
    if (const std::string folder = own_memory_cgroup(); !folder.empty()) {
        watch(folder + "/memory.pressure", trigger);
    }
}

void MemoryWatch::watch(const std::string& path, const std::string& trigger) {
    UniqueFd file(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    // The kernel wants the NUL, too.
    if (file.is_open() && write(file.get(), trigger.c_str(), trigger.size() + 1) > 0) {
        wait(files_.emplace_back(io_, file.release()));
    }
}

void MemoryWatch::wait(File& file) {
    file.async_wait(boost::asio::posix::descriptor_base::wait_error,
                    [this, &file](const boost::system::error_code& error) {
                        pollfd told{file.native_handle(), POLLPRI, 0};
                        if (error || poll(&told, 1, 0) < 0 || (told.revents & POLLERR) != 0) {
                            return;  // The cgroup is gone.
                        }
                        on_short_();
                        wait(file);
                    });
}

}  // namespace ddprun::agent
