#include "worker_runtime/comm/tensors_under_way.hpp"

#include <ATen/record_function.h>

#include <list>
#include <memory>
#include <utility>

namespace ddprun::worker {

/// The entries of a thread. While there are any, LibTorch calls before_operator() for each operator
/// that this thread begins.
class TensorsUnderWay::OfThread {
public:
    static OfThread& here() {
        thread_local OfThread entries;
        return entries;
    }

    void add(Entry entry) {
        if (entries_.empty()) {
            observer_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&before_operator)
                                                       .needsInputs(true)
                                                       .scopes({at::RecordScope::FUNCTION}));
        }
        entries_.push_back(std::move(entry));
    }

    /// Waits for the entries that `is_wanted`.
    template <typename IsWanted>
    void wait(const IsWanted& is_wanted) {
        for (auto next = entries_.begin(); next != entries_.end();) {
            const auto entry = next++;
            if (!is_wanted(*entry)) {
                continue;
            }
            // Operators that the wait itself begins find it no more.
            Entry waited = std::move(*entry);
            entries_.erase(entry);
            if (entries_.empty()) {
                at::removeCallback(observer_);
            }
            if (Result<void> done = waited.pending.wait(); !done && !waited.owner->failure_) {
                waited.owner->failure_ = done.error();
            }
        }
    }

private:
    static std::unique_ptr<at::ObserverContext> before_operator(
        const at::RecordFunction& operation) {
        for (const c10::IValue& input : operation.inputs()) {
            if (input.isTensor()) {
                here().before_use_of(input.toTensor());
            } else if (input.isTensorList()) {
                for (const torch::Tensor& tensor : input.toTensorVector()) {
                    here().before_use_of(tensor);
                }
            }
        }
        return nullptr;
    }

    void before_use_of(const torch::Tensor& tensor) {
        if (tensor.defined() && tensor.has_storage()) {
            wait([&](const Entry& entry) { return entry.tensor.is_alias_of(tensor); });
        }
    }

    std::list<Entry> entries_;
    at::CallbackHandle observer_ = 0;
};

TensorsUnderWay::~TensorsUnderWay() {
    (void)wait();
}

void TensorsUnderWay::add(const torch::Tensor& tensor, Pending<void> pending) {
    OfThread::here().add({.tensor = tensor, .pending = std::move(pending), .owner = this});
}

Result<void> TensorsUnderWay::wait() {
    OfThread::here().wait([this](const Entry& entry) { return entry.owner == this; });
    const std::optional<Error> failure = std::exchange(failure_, std::nullopt);
    return failure ? Result<void>(*failure) : Result<void>();
}

void TensorsUnderWay::wait_for_all() {
    OfThread::here().wait([](const Entry& /*entry*/) { return true; });
}

}  // namespace ddprun::worker
