#include "worker_runtime/checkpoint/json_text.hpp"

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ddprun::worker {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kQuotedBytesMax = 100;

/// Looks at a text event by event, before it becomes a tree: the parser's own callback takes time
/// that grows with the square of a list's length.
class TextCheck final : public nlohmann::json_sax<Json> {
public:
    explicit TextCheck(int depth_max) : depth_max_(static_cast<std::size_t>(depth_max)) {}

    /// Empty: it is only no JSON.
    [[nodiscard]] const std::string& problem() const { return problem_; }

    bool start_object(std::size_t /*elements*/) override { return open(); }
    bool start_array(std::size_t /*elements*/) override { return open(); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
        return keys_.back().insert(name).second ||
               refuse(fmt::format("key {} occurs twice", in_quotes(name)));
    }

    bool null() override { return true; }
    bool boolean(bool /*value*/) override { return true; }
    bool number_integer(number_integer_t /*number*/) override { return true; }
    bool number_unsigned(number_unsigned_t /*number*/) override { return true; }
    bool number_float(number_float_t /*number*/, const string_t& /*text*/) override { return true; }
    bool string(string_t& /*text*/) override { return true; }
    bool binary(binary_t& /*bytes*/) override { return true; }
    bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                     const nlohmann::detail::exception& /*exception*/) override {
        return false;
    }

private:
    bool open() {
        keys_.emplace_back();
        return keys_.size() <= depth_max_ ||
               refuse(fmt::format("it is nested deeper than {}", depth_max_));
    }
    bool close() {
        keys_.pop_back();
        return true;
    }
    bool refuse(std::string why) {
        problem_ = std::move(why);
        return false;
    }

    std::size_t depth_max_;
    std::vector<std::set<std::string>> keys_;  // of the open objects; a list has none
    std::string problem_;
};

}  // namespace

std::string in_quotes(std::string_view text) {
    const bool is_cut = text.size() > kQuotedBytesMax;
    const Json value(std::string(text.substr(0, kQuotedBytesMax)));
    return value.dump(-1, ' ', true, Json::error_handler_t::replace) + (is_cut ? "…" : "");
}

Result<Json> parse_json(std::string_view text, int depth_max) {
    // nlohmann takes a NUL byte for the end and skips a byte order mark.
    if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
        return Error{ErrorCode::BadMessage, fmt::format("byte {} is NUL", at)};
    }
    if (text.empty() || text.front() != '{') {
        return Error{ErrorCode::BadMessage, "it does not begin with {"};
    }
    TextCheck check(depth_max);
    if (!Json::sax_parse(text.begin(), text.end(), &check)) {
        return Error{ErrorCode::BadMessage,
                     check.problem().empty() ? "it is not JSON" : check.problem()};
    }
    return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace ddprun::worker
