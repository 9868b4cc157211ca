#include <array>
#include <string_view>

#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

/// The file of a flag, which must be there; empty if the flag asks for nothing.
Result<std::string> file_of(const CommandLine& line, std::string_view flag,
                            const Surroundings& surroundings) {
    const std::optional<Given> given = line.value(flag);
    if (!given || given->value.empty()) {
        return std::string();
    }
    if (!surroundings.exists(given->value) || surroundings.is_directory(given->value)) {
        return bad_value(*given, "no such file; it must hold PEM");
    }
    return given->value;
}

}  // namespace

Result<void> take_tls(const CommandLine& line, const Surroundings& surroundings, LaunchPlan& plan) {
    if (plan.is_single_node) {
        return {};  // nothing leaves this process
    }
    struct File {
        std::string_view flag;
        std::string* target;
    };
    const std::array files = {File{"tls-cert", &plan.tls.cert}, File{"tls-key", &plan.tls.key},
                              File{"tls-ca", &plan.tls.ca}};
    for (const File& file : files) {
        Result<std::string> path = file_of(line, file.flag, surroundings);
        if (!path) {
            return path.error();
        }
        *file.target = *std::move(path);
    }
    if (plan.tls.cert.empty() != plan.tls.key.empty()) {
        const std::string_view given = plan.tls.cert.empty() ? "tls-key" : "tls-cert";
        return bad_value(*line.value(given), "--tls-cert and --tls-key belong together; give both");
    }
    if (!plan.tls.cert.empty() && plan.tls.ca.empty()) {
        return bad_value(*line.value("tls-cert"),
                         "needs --tls-ca too, the authority that signed the certificate of the "
                         "rendezvous");
    }
    return {};
}

}  // namespace ddprun::launcher
