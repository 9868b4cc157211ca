#pragma once

#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "agent/notify/delivery.hpp"
#include "base/limits.hpp"
#include "base/os/helper.hpp"

namespace ddprun::agent {

/// Runs a command by the shell for each notice, which is its standard input; it has taken the
/// notice if it ends with 0. Its output is ddprun's.
class CommandDelivery final : public Delivery {
public:
    /// `on_child` hears of each process that was started.
    CommandDelivery(boost::asio::io_context& io, const Limits& limits, std::string command,
                    std::function<void(int pid)> on_child, OnEnd on_end);

    void begin(const std::string& line) override;
    void cancel() override;

private:
    [[nodiscard]] Result<void> start(const std::string& line);

    boost::asio::io_context& io_;
    Milliseconds timeout_;
    std::string command_;
    OnEnd on_end_;
    Helper program_;
    bool is_cancelled_ = false;
};

}  // namespace ddprun::agent
