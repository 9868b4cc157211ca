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

/// Shows what the prepare command writes, both of its streams, as lines behind a prefix. Owned and
/// called by the agent's thread; outlives the run of `io`.
class PrepareOutput {
public:
    PrepareOutput(boost::asio::io_context& io, const std::string& prefix,
                  std::size_t line_bytes_max, std::function<void(const std::string& line)> show);

    /// What the command is to write to. At most once.
    [[nodiscard]] Result<UniqueFd> open();

    /// Nobody of the command is left: shows the rest.
    void finish();

private:
    void read_next();
    /// Bytes; 0: there are none for now. None: there will be none.
    [[nodiscard]] std::optional<std::size_t> read_some();
    void show_lines();

    boost::asio::posix::stream_descriptor pipe_;
    LineSplitter splitter_;
    std::function<void(const std::string& line)> show_;
    std::string lines_;
    std::array<char, 4096> buffer_{};
};

}  // namespace ddprun::agent
