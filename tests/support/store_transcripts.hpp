#pragma once

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/places.hpp"

/// The exchanges of tests/support/transcripts/tcpstore.json, whose README explains the fields.
namespace ddprun::rdzv::store_test {

struct TranscriptStep {
    std::size_t connection = 0;
    bool is_from_client = false;
    bool is_close = false;
    std::string bytes;
};

struct Transcript {
    std::string name;
    std::size_t connections = 0;
    bool is_unordered = false;
    std::vector<TranscriptStep> steps;
};

/// Exchanges in which our store deliberately answers otherwise, and why. The README of
/// rendezvous/store says the same.
inline const std::map<std::string, std::string> kDeliberateDifferences{
    {"compare_set_failed_wakes_waiter", "a COMPARE_SET that stores nothing wakes nobody"},
    {"barrier_waiter_woken_by_set", "a barrier opens when its count is reached, not earlier"},
    {"spurious_wake_after_blocking_queue_pop", "a released client is registered nowhere"},
    {"raw_no_validate_ping_twice", "nothing is answered before VALIDATE"},
    {"raw_no_validate_set_then_get", "nothing is carried out before VALIDATE"},
    {"raw_validate_split_in_two_segments", "VALIDATE may arrive in pieces"},
    {"raw_validate_1byte_first", "VALIDATE may arrive in pieces"},
    {"raw_two_waits_pipelined_then_set_both", "the last WAIT of a connection counts"},
};

inline std::string from_hex(const std::string& hex) {
    std::string bytes;
    for (std::size_t at = 0; at + 1 < hex.size(); at += 2) {
        bytes += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
    }
    return bytes;
}

inline std::vector<Transcript> load_transcripts() {
    std::ifstream file(source_dir() + "/tests/support/transcripts/tcpstore.json");
    std::vector<Transcript> transcripts;
    for (const nlohmann::json& from : nlohmann::json::parse(file)) {
        Transcript& to = transcripts.emplace_back();
        to.name = from.at("name");
        to.connections = from.at("connections");
        to.is_unordered = from.value("unordered_reply", false);
        for (const nlohmann::json& step : from.at("steps")) {
            to.steps.push_back({.connection = step.at("conn"),
                                .is_from_client = step.at("dir") == "c2s",
                                .is_close = step.value("close", false),
                                .bytes = from_hex(step.value("hex", ""))});
        }
    }
    return transcripts;
}

/// Bytes that may come in any order, made comparable.
inline std::string sorted(std::string bytes) {
    std::sort(bytes.begin(), bytes.end());
    return bytes;
}

}  // namespace ddprun::rdzv::store_test
