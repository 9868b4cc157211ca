#include "agent/output/console.hpp"

#include <unistd.h>

#include <utility>

#include "agent/output/terminal.hpp"
#include "base/os/unix_time.hpp"

namespace ddprun::agent {

Console::Console(boost::asio::io_context& io, int fd, const std::optional<ScreenOptions>& screen,
                 std::function<void()> on_room)
    : fd_(fd), sink_(io, fd, std::move(on_room)), timer_(io, [this] {
          screen_->tick(clock_now(), shown_);
          show();
      }) {
    if (screen && is_terminal(fd)) {
        screen_.emplace(*screen, window_of(fd));
    }
}

Screen::Source Console::add(Rank rank, std::optional<std::string> own_prefix) {
    return screen_->add(rank, std::move(own_prefix));
}

void Console::feed(Screen::Source source, std::string_view bytes) {
    screen_->feed(clock_now(), source, bytes, shown_);
    show();
}

void Console::finish(Screen::Source source) {
    screen_->finish(clock_now(), source, shown_);
    show();
}

void Console::remove(Screen::Source source) {
    screen_->remove(clock_now(), source, shown_);
    show();
}

void Console::say(std::string_view lines) {
    if (screen_) {
        screen_->say(lines, shown_);
        show();
        return;
    }
    const std::string_view end = needs_returns(fd_) ? "\r\n" : "\n";
    if (sink_.is_in_line()) {
        shown_ = end;
    }
    for (const char byte : lines) {
        byte == '\n' ? shown_ += end : shown_ += byte;
    }
    show();
}

/// From the background it would be written into the user's input to the shell. A terminal that does
/// not control us knows of no background.
void Console::set_foot(std::string text) {
    if (screen_) {
        const pid_t foreground = ::tcgetpgrp(fd_);
        const bool is_ours = foreground < 0 || foreground == ::getpgrp();
        screen_->set_foot(is_ours ? std::move(text) : std::string(), shown_);
        show();
    }
}

void Console::follow_window() {
    if (screen_) {
        screen_->resize(window_of(fd_), shown_);
        show();
    }
}

void Console::show() {
    sink_.write(shown_);
    shown_.clear();
    if (screen_) {
        timer_.set(screen_->next_deadline());
    }
}

}  // namespace ddprun::agent
