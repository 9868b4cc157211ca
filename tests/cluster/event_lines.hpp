#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace ddprun::test {

/// Events as they are written, an object a line.
inline std::vector<nlohmann::json> parsed_events(const std::string& lines) {
    std::vector<nlohmann::json> events;
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) {
        events.push_back(nlohmann::json::parse(line));
    }
    return events;
}

}  // namespace ddprun::test
