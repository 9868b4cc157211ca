#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "rendezvous/journal/journal.hpp"
#include "tests/support/result_text.hpp"

namespace ddprun::rdzv::test {

/// Lets `io` work until `is_done`; false if that takes far longer than it may.
inline bool run_until(boost::asio::io_context& io, const std::function<bool()>& is_done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_done() && std::chrono::steady_clock::now() < deadline) {
        io.restart();
        io.run_one_for(std::chrono::milliseconds(50));
    }
    return is_done();
}

/// Writes and waits for the answer.
inline Result<void> write_now(boost::asio::io_context& io, Journal& journal, const JobId& job,
                              std::string record) {
    std::optional<Result<void>> answer;
    journal.write(job, std::move(record), [&](const Result<void>& done) { answer = done; });
    if (!run_until(io, [&] { return answer.has_value(); })) {
        return Error{ErrorCode::TimedOut, "the journal did not answer"};
    }
    return *answer;
}

}  // namespace ddprun::rdzv::test
