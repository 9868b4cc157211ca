#include "agent/notices/file_notice.hpp"

#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <fmt/format.h>

#include "base/os/give_to_loop.hpp"
#include "base/os/shared_file_system.hpp"
#include "base/os/unix_time.hpp"

namespace ddprun::agent {

namespace {

std::string folder_of(const std::string& path) {
    return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

FileNotice::FileNotice(boost::asio::io_context& io, const Limits& limits, std::string path,
                       NoticeEvents events)
    : limits_(limits),
      path_(std::move(path)),
      folder_(folder_of(path_)),
      name_(path_.substr(path_.rfind('/') + 1)),
      events_(std::move(events)),
      watch_(io),
      pause_(io,
             [this] {
                 look();
                 look_again_later();
             }),
      patience_(io),
      look_(io) {}

void FileNotice::start() {
    look_.ask<Begun>(
        [path = path_, bytes_max = limits_.drain_text_bytes_max] {
            return begin_to_watch(path, bytes_max);
        },
        [this](std::optional<Begun> begun) { has_begun(std::move(begun)); });
    await_answer();
}

void FileNotice::stop() {
    is_stopped_ = true;
    boost::system::error_code ignored;
    watch_.close(ignored);
    pause_.set(std::nullopt);
    patience_.cancel();
}

/// On the thread of the look.
FileNotice::Begun FileNotice::begin_to_watch(const std::string& path, std::size_t bytes_max) {
    Begun begun;
    const std::string folder = folder_of(path);
    if (is_on_shared_file_system(folder)) {
        begun.why = "inotify does not see what other machines write there";
    } else {
        begun.watch.reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
        constexpr std::uint32_t kComing = IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE;
        if (!begun.watch.is_open() ||
            ::inotify_add_watch(begun.watch.get(), folder.c_str(),
                                kComing | IN_DELETE_SELF | IN_MOVE_SELF) < 0) {
            begun.why = fmt::format("inotify cannot watch {}: {}", folder,
                                    std::generic_category().message(errno));
            begun.watch.reset();
        }
    }
    begun.seen = see(path, bytes_max);
    return begun;
}

/// On the thread of the look.
FileNotice::Seen FileNotice::see(const std::string& path, std::size_t bytes_max) {
    Seen seen;
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
        return seen;
    }
    seen.is_there = true;
    if (S_ISREG(status.st_mode)) {
        // read_beginning() does not wait for the holder of a lease on the file; this thread may.
        std::ifstream file(path);
        seen.line.resize(bytes_max);
        file.read(seen.line.data(), static_cast<std::streamsize>(seen.line.size()));
        seen.line.resize(static_cast<std::size_t>(file.gcount()));
        seen.line.resize(std::min(seen.line.find('\n'), seen.line.size()));
    }
    return seen;
}

void FileNotice::has_begun(std::optional<Begun> begun) {
    if (is_stopped_) {
        return;
    }
    std::string why = begun ? std::move(begun->why) : "no thread can be had to watch it";
    if (begun && begun->watch.is_open()) {
        if (const Result<void> given = give_to_loop(watch_, std::move(begun->watch)); !given) {
            why = given.error().what;
        }
    }
    if (watch_.is_open()) {
        await_events();
    } else {
        watch_by_looking(why);
    }
    take(begun ? std::optional(std::move(begun->seen)) : std::nullopt);
}

void FileNotice::await_events() {
    watch_.async_read_some(boost::asio::buffer(buffer_),
                           [this](boost::system::error_code failure, std::size_t count) {
                               if (!failure) {
                                   take_events(count);
                               }
                           });
}

void FileNotice::take_events(std::size_t count) {
    bool is_meant = false;
    bool is_over = false;
    for (std::size_t at = 0; at + sizeof(inotify_event) <= count;) {
        inotify_event event{};
        std::memcpy(&event, buffer_.data() + at, sizeof(event));
        const char* name = buffer_.data() + at + sizeof(event);
        is_meant |= (event.mask & IN_Q_OVERFLOW) != 0 || (event.len > 0 && name_ == name);
        is_over |= (event.mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED)) != 0;
        at += sizeof(event) + event.len;
    }
    if (is_meant) {
        look();
    }
    if (is_over) {
        boost::system::error_code ignored;
        watch_.close(ignored);
        watch_by_looking(fmt::format("{} is not there any more", folder_));
        return;
    }
    await_events();
}

void FileNotice::watch_by_looking(const std::string& why) {
    events_.say(fmt::format("--drain-on file:{}: {}; it is looked at every {} s", path_, why,
                            limits_.drain_look_every.count() / 1000));
    look_again_later();
}

void FileNotice::look_again_later() {
    pause_.set(clock_now() + limits_.drain_look_every);
}

void FileNotice::look() {
    if (look_.is_asked()) {
        is_look_due_ = true;
        return;
    }
    is_look_due_ = false;
    look_.ask<Seen>(
        [path = path_, bytes_max = limits_.drain_text_bytes_max] { return see(path, bytes_max); },
        [this](std::optional<Seen> seen) { take(std::move(seen)); });
    await_answer();
}

void FileNotice::take(std::optional<Seen> seen) {
    patience_.cancel();
    if (is_stopped_) {
        return;
    }
    if (seen && seen->is_there) {
        events_.on_notice(LeaveNotice{.why = path_ + " is there",
                                      .gone_at = deadline_in(seen->line, read_clocks())});
    }
    if (is_look_due_) {
        look();
    }
}

void FileNotice::await_answer() {
    patience_.expires_after(limits_.drain_look_every);
    patience_.async_wait([this](boost::system::error_code cancelled) {
        if (!cancelled && look_.is_asked()) {
            events_.say(fmt::format(
                "--drain-on file:{}: its file system has not answered for {} s: a notice there "
                "is heard when it does; look at the mount",
                path_, limits_.drain_look_every.count() / 1000));
        }
    });
}

}  // namespace ddprun::agent
