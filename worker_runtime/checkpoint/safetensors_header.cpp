#include "worker_runtime/checkpoint/safetensors_header.hpp"

#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "worker_runtime/checkpoint/json_text.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

namespace ddprun::worker {

namespace {

using Json = nlohmann::json;

// Each method is one event; false ends the parsing, problem() then says why. The places allow four
// levels, so that nesting is bounded by construction.
class HeaderEvents final : public nlohmann::json_sax<Json> {
public:
    [[nodiscard]] const std::string& problem() const { return problem_; }
    [[nodiscard]] SafetensorsHeader& header() { return header_; }

    bool start_object(std::size_t /*elements*/) override {
        if (place_ == Place::Outside) {
            place_ = Place::Top;
            return true;
        }
        if (place_ != Place::Top) {
            return refuse("has an object where none belongs");
        }
        place_ = key_ == kSafetensorsMetadataKey ? Place::Metadata : Place::Tensor;
        entry_ = SafetensorsEntry{};
        entry_.name = key_;
        fields_.clear();
        return true;
    }

    bool key(string_t& name) override {
        if (place_ == Place::Top) {
            key_ = name;
            return names_.insert(name).second || refuse("occurs twice");
        }
        field_ = name;
        if (place_ == Place::Tensor && name != "dtype" && name != "shape" &&
            name != "data_offsets") {
            return refuse(fmt::format("has the unknown field {}", in_quotes(name)));
        }
        return fields_.insert(name).second ||
               refuse(fmt::format("has the field {} twice", in_quotes(name)));
    }

    bool end_object() override {
        if (place_ == Place::Top) {
            place_ = Place::Outside;
            return true;
        }
        if (place_ == Place::Tensor) {
            if (fields_.size() != 3) {
                return refuse("lacks one of dtype, shape and data_offsets");
            }
            header_.entries.push_back(std::move(entry_));
        }
        place_ = Place::Top;
        return true;
    }

    bool start_array(std::size_t /*elements*/) override {
        if (place_ != Place::Tensor || field_ == "dtype") {
            return refuse("has a list where none belongs");
        }
        place_ = field_ == "shape" ? Place::Shape : Place::Offsets;
        offsets_ = 0;
        return true;
    }

    bool end_array() override {
        if (place_ == Place::Offsets && offsets_ != 2) {
            return refuse(fmt::format("has {} data_offsets instead of 2", offsets_));
        }
        place_ = Place::Tensor;
        return true;
    }

    bool string(string_t& text) override {
        if (place_ == Place::Tensor && field_ == "dtype") {
            entry_.dtype = text;
            return true;
        }
        if (place_ == Place::Metadata) {
            header_.metadata[field_] = text;
            return true;
        }
        return refuse("has a text where none belongs");
    }

    bool number_unsigned(number_unsigned_t number) override {
        if (place_ == Place::Shape) {
            if (entry_.shape.size() == kSafetensorsDimensionsMax) {
                return refuse(
                    fmt::format("has more than {} dimensions", kSafetensorsDimensionsMax));
            }
            if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
                return refuse(fmt::format("has the dimension {}, which is too large", number));
            }
            entry_.shape.push_back(static_cast<std::int64_t>(number));
            return true;
        }
        if (place_ == Place::Offsets) {
            ++offsets_;
            if (offsets_ > 2) {
                return refuse("has more than 2 data_offsets");
            }
            (offsets_ == 1 ? entry_.begin : entry_.end) = number;
            return true;
        }
        return refuse("has a number where none belongs");
    }

    bool number_integer(number_integer_t number) override {
        return refuse(fmt::format("has the negative number {}", number));
    }
    bool number_float(number_float_t /*number*/, const string_t& text) override {
        return refuse(
            fmt::format("has the number {}, which is no 64-bit integer", in_quotes(text)));
    }
    bool null() override { return refuse("has a null"); }
    bool boolean(bool /*value*/) override { return refuse("has a true or false"); }
    bool binary(binary_t& /*bytes*/) override { return refuse("has bytes"); }

    bool parse_error(std::size_t position, const std::string& /*token*/,
                     const nlohmann::detail::exception& /*exception*/) override {
        if (problem_.empty()) {
            problem_ = fmt::format("the header is not JSON at its byte {}", position);
        }
        return false;
    }

private:
    enum class Place { Outside, Top, Metadata, Tensor, Shape, Offsets };

    bool refuse(const std::string& why) {
        problem_ = place_ == Place::Outside ? fmt::format("the header {}", why)
                                            : fmt::format("tensor {} {}", in_quotes(key_), why);
        return false;
    }

    Place place_ = Place::Outside;
    std::string key_;    // the tensor that is read
    std::string field_;  // its field
    std::size_t offsets_ = 0;
    std::set<std::string> fields_;  // seen in the open inner object
    std::set<std::string> names_;
    SafetensorsEntry entry_;
    SafetensorsHeader header_;
    std::string problem_;
};

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> header) {
    const auto* const text = reinterpret_cast<const char*>(header.data());
    const std::string_view json(text, header.size());
    // nlohmann takes a NUL byte for the end and skips a byte order mark.
    if (const std::size_t at = json.find('\0'); at != std::string_view::npos) {
        return Error{ErrorCode::BadMessage, fmt::format("byte {} of the header is NUL", at)};
    }
    if (json.empty() || json.front() != '{') {
        return Error{ErrorCode::BadMessage, "the header does not begin with {"};
    }
    HeaderEvents events;
    if (!Json::sax_parse(json.begin(), json.end(), &events)) {
        return Error{ErrorCode::BadMessage, events.problem()};
    }
    return std::move(events.header());
}

}  // namespace ddprun::worker
