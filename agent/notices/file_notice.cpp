#include "agent/notices/file_notice.hpp"

#include <sys/inotify.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <fmt/format.h>

#include "base/os/shared_file_system.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

FileNotice::FileNotice(boost::asio::io_context& io, const Limits& limits, std::string path,
                       NoticeEvents events)
    : limits_(limits),
      path_(std::move(path)),
      folder_(path_.substr(0, path_.rfind('/') + 1)),
      name_(path_.substr(path_.rfind('/') + 1)),
      events_(std::move(events)),
      watch_(io),
      pause_(io) {}

void FileNotice::start() {
    const std::string why = begin_to_watch();
    if (!why.empty()) {
        watch_by_looking(why);
    }
    // It may have been there before anybody watched.
    look();
}

void FileNotice::stop() {
    boost::system::error_code ignored;
    watch_.close(ignored);
    pause_.cancel();
}

/// Empty, or why nothing will be told.
std::string FileNotice::begin_to_watch() {
    if (is_on_shared_file_system(folder_)) {
        return "inotify does not see what other machines write there";
    }
    UniqueFd made(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    constexpr std::uint32_t kComing = IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE;
    if (!made.is_open() || ::inotify_add_watch(made.get(), folder_.c_str(),
                                               kComing | IN_DELETE_SELF | IN_MOVE_SELF) < 0) {
        return fmt::format("inotify cannot watch {}: {}", folder_,
                           std::generic_category().message(errno));
    }
    watch_.assign(made.release());
    await_events();
    return {};
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
    pause_.expires_after(limits_.drain_look_every);
    pause_.async_wait([this](boost::system::error_code cancelled) {
        if (!cancelled) {
            look();
            look_again_later();
        }
    });
}

void FileNotice::look() {
    struct stat status {};
    if (::stat(path_.c_str(), &status) != 0) {
        return;
    }
    std::string line;
    if (S_ISREG(status.st_mode)) {
        std::ifstream file(path_);
        line.resize(limits_.drain_text_bytes_max);
        file.read(line.data(), static_cast<std::streamsize>(line.size()));
        line.resize(static_cast<std::size_t>(file.gcount()));
        line.resize(std::min(line.find('\n'), line.size()));
    }
    events_.on_notice(
        LeaveNotice{.why = path_ + " is there", .gone_at = deadline_in(line, read_clocks())});
}

}  // namespace ddprun::agent
