#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.hpp"
#include "base/result.hpp"
#include "rendezvous/store/core/backend.hpp"
#include "rendezvous/store/core/waiting.hpp"
#include "rendezvous/store/protocol/replies.hpp"
#include "rendezvous/store/protocol/request.hpp"
#include "rendezvous/store/protocol/value.hpp"

namespace ddprun::rdzv {

/// The keys, queues and waiting clients of one generation's store, without time, threads or
/// sockets. rendezvous/store/README.md specifies every operation.
class StoreCore final : public StoreBackend {
public:
    /// `limits` outlives the core.
    explicit StoreCore(const Limits& limits) : limits_(&limits), waiters_(limits) {}

    [[nodiscard]] Result<void> handle(StoreClient client, std::string_view request,
                                      StoreReplies& replies,
                                      const std::shared_ptr<const void>& owner = {}) override;

    /// Elements of queues of which the client alone had been told are offered to those who still
    /// wait.
    void disconnected(StoreClient client, StoreReplies& replies) override;

    [[nodiscard]] StoreWaits waits() const override { return waiters_.waits(); }

    [[nodiscard]] std::size_t key_count() const { return values_.size(); }
    [[nodiscard]] std::size_t queue_count() const { return queues_.size(); }
    [[nodiscard]] std::size_t waiter_count() const { return waiters_.size(); }
    /// Memory that the names they wait for take.
    [[nodiscard]] std::uint64_t waiting_bytes() const { return waiters_.bytes(); }

private:
    Result<void> dispatch(StoreOpcode opcode, StoreClient client, FieldReader& fields,
                          StoreReplies& replies, const std::shared_ptr<const void>& owner);
    void set(FieldReader& fields, const std::shared_ptr<const void>& owner);
    Result<void> compare_set(StoreClient client, FieldReader& fields, StoreReplies& replies);
    Result<void> get(StoreClient client, FieldReader& fields, StoreReplies& replies);
    Result<void> add(StoreClient client, FieldReader& fields, StoreReplies& replies);
    void check(StoreClient client, FieldReader& fields, StoreReplies& replies);
    Result<void> wait(StoreClient client, FieldReader& fields, StoreReplies& replies);
    void delete_key(StoreClient client, FieldReader& fields, StoreReplies& replies);
    void append(FieldReader& fields);
    Result<void> multi_get(StoreClient client, FieldReader& fields, StoreReplies& replies);
    void multi_set(FieldReader& fields);
    void queue_push(FieldReader& fields, const std::shared_ptr<const void>& owner);
    void queue_pop(StoreClient client, FieldReader& fields, StoreReplies& replies);
    Result<void> list_keys(StoreClient client, StoreReplies& replies);
    Result<void> barrier(StoreClient client, FieldReader& fields, StoreReplies& replies);

    [[nodiscard]] Result<void> check_room(StoreOpcode opcode, std::size_t request_bytes) const;
    /// A new one if there is none.
    StoreValue& value_of(std::string_view key);
    [[nodiscard]] bool exists(std::string_view name) const;
    void store(std::string_view key, std::string_view value,
               const std::shared_ptr<const void>& owner = {});
    Result<std::int64_t> increase(StoreOpcode opcode, std::string_view key, std::int64_t amount);
    void value_changed(std::string_view key, std::string_view value);
    void offer_again(const std::vector<std::string>& queues);
    void release_waiters(StoreReplies& replies);
    [[nodiscard]] Result<void> check_reply_size(StoreOpcode opcode, std::uint64_t size) const;

    const Limits* limits_;
    TextMap<StoreValue> values_;
    std::uint64_t stored_bytes_ = 0;  ///< of keys, values and elements, with what each takes
    StoreQueues queues_;
    StoreWaiters waiters_;
    std::vector<StoreClient> released_;      ///< to be answered before the request ends
    std::vector<std::string_view> missing_;  ///< kept to save allocations
};

}  // namespace ddprun::rdzv
