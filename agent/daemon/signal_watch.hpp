#pragma once

#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

namespace ddprun::agent {

/// Hands over signals that this process gets. Owned and called by the thread of `io`.
class SignalWatch {
public:
    SignalWatch(boost::asio::io_context& io, std::function<void(int signal)> on_signal);

    /// From now on, of these. `say` takes a line for each that cannot be handled.
    void start(const std::vector<int>& signals, const std::function<void(const std::string&)>& say);

    /// Signals have the effect again that they had before.
    void stop();

private:
    void wait();

    boost::asio::signal_set signals_;
    std::function<void(int)> on_signal_;
};

}  // namespace ddprun::agent
