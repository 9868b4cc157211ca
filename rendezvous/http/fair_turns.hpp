#pragma once

#include <cstddef>
#include <deque>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

namespace ddprun::rdzv {

/// Lets many do small pieces of work in turn, a few in each turn of the loop, so that no
/// other work waits for all of them. On the thread of `io`; outlives the run of the loop.
class FairTurns {
public:
    /// One who does such work; outlived by what it waits for.
    struct Place {
        explicit Place(boost::asio::io_context& io)
            : has_come(io, boost::asio::steady_timer::time_point::max()) {}

        boost::asio::steady_timer has_come;  ///< cancelled when its turn has come
        bool is_in_line = false;
    };

    FairTurns(boost::asio::io_context& io, std::size_t at_once) : io_(io), at_once_(at_once) {}

    /// Its turn comes, once.
    void line_up(Place& place);

    /// It does not wait any more; to be called before it is gone.
    void leave(Place& place);

private:
    void go_on();

    boost::asio::io_context& io_;
    std::size_t at_once_;
    std::deque<Place*> line_;
    bool is_going_on_ = false;
};

}  // namespace ddprun::rdzv
