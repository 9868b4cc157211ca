#include "rendezvous/core/rank_map.hpp"

#include <algorithm>
#include <cctype>
#include <climits>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "base/planted_bug.hpp"

namespace ddprun::rdzv {

namespace {

bool is_digit(char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// The end of the run of digits that starts at `from`.
std::size_t digits_end(const std::string& text, std::size_t from) {
    while (from < text.size() && is_digit(text[from])) {
        ++from;
    }
    return from;
}

/// Compares two runs of digits by value, of any length: -1, 0 or 1.
int compare_numbers(std::string left, std::string right) {
    left.erase(0, std::min(left.find_first_not_of('0'), left.size()));
    right.erase(0, std::min(right.find_first_not_of('0'), right.size()));
    if (left.size() != right.size()) {
        return left.size() < right.size() ? -1 : 1;
    }
    return left < right ? -1 : (left == right ? 0 : 1);
}

bool is_first_before(const Candidate& left, const Candidate& right) {
    const int left_rank = left.node_rank.value_or(INT_MAX);
    const int right_rank = right.node_rank.value_or(INT_MAX);
    if (std::tie(left_rank, left.topology_key) != std::tie(right_rank, right.topology_key)) {
        return std::tie(left_rank, left.topology_key) < std::tie(right_rank, right.topology_key);
    }
    if (left.hostname != right.hostname) {
        return is_naturally_before(left.hostname, right.hostname);
    }
    return left.node < right.node;
}

}  // namespace

bool is_naturally_before(const std::string& left, const std::string& right) {
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < left.size() && j < right.size()) {
        if (is_digit(left[i]) && is_digit(right[j])) {
            const std::size_t i_end = digits_end(left, i);
            const std::size_t j_end = digits_end(right, j);
            const int order =
                compare_numbers(left.substr(i, i_end - i), right.substr(j, j_end - j));
            if (order != 0) {
                return order < 0;
            }
            i = i_end;
            j = j_end;
        } else if (left[i] != right[j]) {
            return left[i] < right[j];
        } else {
            ++i;
            ++j;
        }
    }
    if (left.size() - i != right.size() - j) {
        return left.size() - i < right.size() - j;
    }
    return left < right;  // gpu01 and gpu1: any fixed order
}

Place place_of(const Join& join) {
    return {.node = join.node,
            .slots = join.slots,
            .hostname = join.hostname,
            .role = join.role,
            .topology_key = join.topology_key};
}

std::vector<Place> order_places(const std::vector<Place>& previous, std::vector<Candidate> chosen) {
    std::sort(chosen.begin(), chosen.end(), is_first_before);
    std::map<NodeId, const Candidate*> survivors;
    std::set<NodeId> places_before;
    for (const Place& place : previous) {
        places_before.insert(place.node);
    }
    std::deque<const Candidate*> newcomers;
    for (const Candidate& candidate : chosen) {
        if (DDP_RULE(places_before.contains(candidate.node), SurvivorMoved, false)) {
            survivors[candidate.node] = &candidate;
        } else {
            newcomers.push_back(&candidate);
        }
    }
    // By place; null is a hole. Those that fit exactly go before those that only fill one.
    std::vector<const Candidate*> order;
    for (const Place& place : previous) {
        const auto survivor = survivors.find(place.node);
        order.push_back(survivor == survivors.end() ? nullptr : survivor->second);
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (order[i] != nullptr) {
            continue;
        }
        const auto fits = [&](const Candidate* one) { return one->slots == previous[i].slots; };
        auto fitting = std::find_if(newcomers.begin(), newcomers.end(), [&](const Candidate* one) {
            return fits(one) && one->topology_key == previous[i].topology_key;
        });
        if (fitting == newcomers.end()) {
            fitting = std::find_if(newcomers.begin(), newcomers.end(), fits);
        }
        if (fitting != newcomers.end()) {
            order[i] = *fitting;
            newcomers.erase(fitting);
        }
    }
    for (const Candidate*& hole : order) {
        if (hole == nullptr && !newcomers.empty()) {
            hole = newcomers.front();
            newcomers.pop_front();
        }
    }
    order.insert(order.end(), newcomers.begin(), newcomers.end());
    std::vector<Place> places;
    for (const Candidate* one : order) {
        if (one != nullptr) {
            places.push_back(*one);
        }
    }
    return places;
}

}  // namespace ddprun::rdzv
