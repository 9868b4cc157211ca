#include "rendezvous/http/fair_turns.hpp"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>

namespace ddprun::rdzv {

void FairTurns::line_up(Place& place) {
    if (std::exchange(place.is_in_line, true)) {
        return;
    }
    line_.push_back(&place);
    if (!std::exchange(is_going_on_, true)) {
        boost::asio::post(io_, [this] { go_on(); });
    }
}

void FairTurns::leave(Place& place) {
    if (std::exchange(place.is_in_line, false)) {
        line_.erase(std::find(line_.begin(), line_.end(), &place));
    }
}

/// A posted call runs after the work that the loop has found meanwhile.
void FairTurns::go_on() {
    for (std::size_t i = 0; i < at_once_ && !line_.empty(); ++i) {
        Place& place = *line_.front();
        line_.pop_front();
        place.is_in_line = false;
        place.has_come.cancel();
    }
    is_going_on_ = !line_.empty();
    if (is_going_on_) {
        boost::asio::post(io_, [this] { go_on(); });
    }
}

}  // namespace ddprun::rdzv
