#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/place/schedulers.hpp"
#include "launcher/place/variables.hpp"

namespace ddprun::launcher {

namespace {

/// The kubelet writes a pod's own names into its /etc/hosts, the whole one first:
/// `10.1.0.5	train-1.workers.site.org	train-1`. The name behind the pod's
/// is that of the service; empty without one.
std::string service_of(const std::string& pod, std::string_view hosts) {
    const std::string whole = "\t" + pod + ".";
    const std::size_t found = hosts.find(whole);
    if (found == std::string_view::npos) {
        return {};
    }
    const std::string_view service = hosts.substr(found + whole.size());
    return std::string(service.substr(0, service.find_first_of(". \t\r\n")));
}

}  // namespace

/// A pod of an Indexed Job knows which one it is, but not how many there are.
Result<std::optional<Place>> place_in_kubernetes(const Surroundings& surroundings) {
    const Variables variables(surroundings);
    if (!variables.has("JOB_COMPLETION_INDEX") || !variables.has("KUBERNETES_SERVICE_HOST")) {
        return std::optional<Place>{};
    }
    const Result<int> index = variables.small({"JOB_COMPLETION_INDEX"}, Limits{}.nodes_max, 0);
    if (!index) {
        return index.error();
    }
    Place place;
    place.nodes = 0;
    place.node_rank = *index;
    place.node = surroundings.host_name();
    const std::string end = fmt::format("-{}", *index);
    const bool is_named = place.node.size() > end.size() && place.node.ends_with(end);
    if (!is_named) {
        place.job = "kubernetes job";
        return std::optional<Place>{std::move(place)};
    }
    place.job_id = place.node.substr(0, place.node.size() - end.size());
    place.job = "kubernetes job " + place.job_id;
    const std::string service =
        service_of(place.node, surroundings.read_file("/etc/hosts").value_or(""));
    place.endpoint_host =
        fmt::format("{}-0.{}", place.job_id, service.empty() ? "SERVICE" : service);
    return std::optional<Place>{std::move(place)};
}

}  // namespace ddprun::launcher
