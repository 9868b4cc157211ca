#include "rendezvous/store/core/stalls.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace ddprun::rdzv {

std::string_view text_of(StoreDebt::Kind kind) {
    switch (kind) {
        case StoreDebt::Kind::Greeting:
            return "it has not said VALIDATE";
        case StoreDebt::Kind::Request:
            return "its request is incomplete";
        case StoreDebt::Kind::Replies:
            return "it does not read its replies";
        case StoreDebt::Kind::Nothing:
            break;
    }
    DDP_CHECK(false, static_cast<int>(kind));
    return {};
}

void StoreStalls::owe(Stall& stall, StoreClient client, const StoreDebt& debt, Instant now) {
    if (debt == stall.debt_) {
        return;
    }
    if (stall.debt_.kind != StoreDebt::Kind::Nothing) {
        entries_of(stall.debt_.kind).erase(stall.entry_);
    }
    stall.debt_ = debt;
    if (debt.kind != StoreDebt::Kind::Nothing) {
        Entries& entries = entries_of(debt.kind);
        const Milliseconds patience =
            debt.kind == StoreDebt::Kind::Greeting ? greeting_patience_ : patience_;
        stall.entry_ = entries.insert(
            entries.end(), {.client = client, .kind = debt.kind, .deadline = now + patience});
    }
}

std::optional<Instant> StoreStalls::next_deadline() const {
    std::optional<Instant> next;
    for (const Entries* entries : {&greetings_, &others_}) {
        if (!entries->empty()) {
            next = std::min(next.value_or(Instant::max()), entries->front().deadline);
        }
    }
    return next;
}

std::vector<StoreStalls::Overdue> StoreStalls::overdue(Instant now) const {
    std::vector<Overdue> overdue;
    for (const Entries* entries : {&greetings_, &others_}) {
        const Milliseconds patience = entries == &greetings_ ? greeting_patience_ : patience_;
        for (const Entry& entry : *entries) {
            if (entry.deadline > now) {
                break;
            }
            overdue.push_back({.client = entry.client, .kind = entry.kind, .patience = patience});
        }
    }
    return overdue;
}

}  // namespace ddprun::rdzv
