#include "tests/sim/event_queue.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace ddprun::sim {

bool EventQueue::is_later(const Event& left, const Event& right) {
    return std::tie(left.at, left.order) > std::tie(right.at, right.order);
}

void EventQueue::at(Instant when, std::function<void()> action) {
    heap_.push_back(Event{std::max(when, now_), ++orders_, std::move(action)});
    std::push_heap(heap_.begin(), heap_.end(), is_later);
}

void EventQueue::run_next() {
    std::pop_heap(heap_.begin(), heap_.end(), is_later);
    Event event = std::move(heap_.back());
    heap_.pop_back();
    executed_at_once_ = event.at == now_ ? executed_at_once_ + 1 : 0;
    now_ = event.at;
    ++executed_;
    event.action();
}

}  // namespace ddprun::sim
