#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "agent/output/line_splitter.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// Shows what the prepare command writes, both of its streams, as lines behind a prefix, and has it
/// logged as it is. Owned and called by the agent's thread; outlives the run of `io`.
class PrepareOutput {
public:
    struct Sinks {
        std::function<void(const std::string& line)> show;
        /// Calls `done`, on this thread, when the bytes are written: the command waits for a slow
        /// disk.
        std::function<void(std::string bytes, std::function<void()> done)> log;
    };

    PrepareOutput(boost::asio::io_context& io, const std::string& prefix,
                  std::size_t line_bytes_max, Sinks sinks);

    /// Returns the pipe that the command is to write to. At most once.
    [[nodiscard]] Result<UniqueFd> open();

    /// All processes of the command have ended: shows the rest.
    void finish();

private:
    void read_next();
    void read_on();
    /// Returns the bytes that came; empty: none for now; nullopt: no more will come.
    [[nodiscard]] std::optional<std::string> read_some();
    void show_lines();

    boost::asio::posix::stream_descriptor pipe_;
    LineSplitter splitter_;
    Sinks sinks_;
    std::string lines_;
    std::array<char, 4096> buffer_{};
};

}  // namespace ddprun::agent
