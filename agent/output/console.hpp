#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>

#include "agent/output/screen.hpp"
#include "agent/output/worker_output_console.hpp"
#include "base/os/deadline_timer.hpp"

namespace ddprun::agent {

/// A console stream of the output thread: the place that takes bytes and, where that is a terminal
/// which several workers share, what is shown there. The screen's timer is armed only while
/// something waits to be shown.
class Console {
public:
    /// `screen`: used if `fd` is a terminal. The rest as ConsoleSink.
    Console(boost::asio::io_context& io, int fd, const std::optional<ScreenOptions>& screen,
            std::function<void()> on_room);

    [[nodiscard]] ConsoleSink& sink() { return sink_; }

    /// False: bytes go to the sink as they are.
    [[nodiscard]] bool has_screen() const { return screen_.has_value(); }

    /// As the functions of Screen; only with a screen.
    [[nodiscard]] Screen::Source add(Rank rank, std::optional<std::string> own_prefix);
    void feed(Screen::Source source, std::string_view bytes);
    void finish(Screen::Source source);
    void remove(Screen::Source source);

    /// Lines that are no worker's, after all that came before. Never behind an unfinished line.
    void say(std::string_view lines);

    /// Screen::set_foot(), where there is a screen and this process is in the terminal's
    /// foreground.
    void set_foot(std::string text);

    /// The terminal's window may have another size.
    void follow_window();

private:
    void show();

    const int fd_;
    ConsoleSink sink_;
    std::optional<Screen> screen_;
    DeadlineTimer timer_;  ///< of the screen
    std::string shown_;    ///< of one call
};

}  // namespace ddprun::agent
