#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/place/host_shares.hpp"
#include "launcher/place/schedulers.hpp"
#include "launcher/place/variables.hpp"
#include "rendezvous/wire/json_text.hpp"

namespace ddprun::launcher {

namespace {

constexpr const char* kFile = "/opt/ml/input/config/resourceconfig.json";

Error wrong_config(const std::string& why) {
    return Error{ErrorCode::InvalidArgument, fmt::format("{}: {}", kFile, why)};
}

/// The names in "hosts", with blanks between them.
std::string hosts_of(const nlohmann::json& object) {
    const auto found = object.find("hosts");
    std::string hosts;
    if (found == object.end() || !found->is_array()) {
        return hosts;
    }
    for (const nlohmann::json& host : *found) {
        hosts += host.is_string() ? host.get<std::string>() + " " : "? ";
    }
    return hosts;
}

}  // namespace

/// A training job: SageMaker starts the container on each host.
Result<std::optional<Place>> place_in_sagemaker(const Surroundings& surroundings) {
    const Variables variables(surroundings);
    if (!variables.has("TRAINING_JOB_NAME") && !variables.has("SM_TRAINING_ENV")) {
        return std::optional<Place>{};
    }
    const std::optional<std::string> text = surroundings.read_text(kFile);
    if (!text) {
        return std::optional<Place>{};
    }
    const nlohmann::json config = rdzv::parse_shallow_json(*text);
    if (!config.is_object()) {
        return wrong_config("is no object of JSON");
    }
    Result<std::vector<HostShare>> shares = shares_of_slots(hosts_of(config));
    if (!shares) {
        return wrong_config("hosts: " + shares.error().what);
    }
    // The same on every host, whatever the order in which they are written.
    std::sort(shares->begin(), shares->end(),
              [](const HostShare& a, const HostShare& b) { return a.host < b.host; });
    const std::string own = rdzv::text_in(config, "current_host");
    const std::optional<std::size_t> rank = own_share(*shares, own);
    if (!rank) {
        return wrong_config(
            fmt::format("current_host '{}' is none of the {} hosts", own, shares->size()));
    }
    Place place;
    const std::optional<Variable> name = variables.first_of({"TRAINING_JOB_NAME"});
    place.job_id = name ? name->value : "sagemaker";
    place.job = "sagemaker job " + place.job_id;
    place.node = own;
    place.node_rank = static_cast<int>(*rank);
    take_shares(*shares, 0, place);
    return std::optional<Place>{std::move(place)};
}

}  // namespace ddprun::launcher
