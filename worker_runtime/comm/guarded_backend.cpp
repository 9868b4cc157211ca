#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/comm/backends.hpp"

namespace ddprun::worker {

namespace {

using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// A collective: its future reports the loss, and its wait() without a time-out waits for that.
class GuardedWork final : public Work {
public:
    GuardedWork(c10::intrusive_ptr<Work> inner, std::shared_ptr<Loss> loss)
        : inner_(std::move(inner)),
          loss_(std::move(loss)),
          future_(loss_->unless_lost(inner_->getFuture())) {}

    bool isCompleted() override { return future_->completed(); }
    bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
    std::exception_ptr exception() const override {
        return future_->hasError() ? future_->exception_ptr() : nullptr;
    }
    Tensors result() override { return inner_->result(); }
    void synchronize() override { inner_->synchronize(); }
    bool wait(std::chrono::milliseconds timeout) override {
        if (timeout != kNoTimeout) {
            require_end_within(timeout);
        }
        future_->waitAndThrow();
        const bool is_done = inner_->wait(kNoTimeout);
        loss_->check();  // an operation that was cut off may say that it is done
        return is_done;
    }
    void abort() override { inner_->abort(); }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
    std::uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

private:
    /// Throws unless the operation has ended, or a rank is lost, within that time.
    void require_end_within(std::chrono::milliseconds timeout) {
        const auto ended = std::make_shared<std::promise<void>>();
        future_->addCallback([ended](c10::ivalue::Future&) { ended->set_value(); });
        if (ended->get_future().wait_for(timeout) != std::future_status::ready) {
            C10_THROW_ERROR(DistBackendError,
                            "it is not done after " + std::to_string(timeout.count()) + " ms");
        }
    }

    c10::intrusive_ptr<Work> inner_;
    std::shared_ptr<Loss> loss_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// Transfers that nobody has waited for. A connection of Gloo's stands still once a message comes
/// for, or goes out of, a buffer that its owner has let go, so they stay as long as the connection.
class Abandoned {
public:
    void add(c10::intrusive_ptr<Work> transfer) {
        const std::lock_guard lock(mutex_);
        transfers_.push_back(std::move(transfer));
    }

private:
    std::mutex mutex_;
    std::vector<c10::intrusive_ptr<Work>> transfers_;
};

/// A tensor sent or received: Gloo has no future for it, but its wait can be ended.
class GuardedTransfer final : public Work {
public:
    GuardedTransfer(c10::intrusive_ptr<Work> inner, std::shared_ptr<Loss> loss,
                    std::shared_ptr<Abandoned> abandoned)
        : inner_(std::move(inner)), loss_(std::move(loss)), abandoned_(std::move(abandoned)) {}
    ~GuardedTransfer() override {
        if (!is_over_) {
            abandoned_->add(std::move(inner_));
        }
    }
    GuardedTransfer(const GuardedTransfer&) = delete;
    GuardedTransfer& operator=(const GuardedTransfer&) = delete;

    bool isCompleted() override { return inner_->isCompleted(); }
    bool isSuccess() const override { return inner_->isSuccess(); }
    std::exception_ptr exception() const override { return inner_->exception(); }
    int sourceRank() const override { return inner_->sourceRank(); }
    bool wait(std::chrono::milliseconds timeout) override {
        const Loss::Guard guard(*loss_, [this] { inner_->abort(); });
        is_over_ = true;
        const bool is_done = inner_->wait(timeout);
        loss_->check();
        return is_done;
    }
    void abort() override { inner_->abort(); }
    std::uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

private:
    c10::intrusive_ptr<Work> inner_;
    std::shared_ptr<Loss> loss_;
    std::shared_ptr<Abandoned> abandoned_;
    bool is_over_ = false;  ///< somebody has waited
};

class GuardedBackend final : public c10d::Backend {
public:
    GuardedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Loss> loss)
        : Backend(inner->getRank(), inner->getSize()),
          inner_(std::move(inner)),
          loss_(std::move(loss)) {}

    bool supportsSplitting() const override { return inner_->supportsSplitting(); }
    c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                      const std::vector<int>& ranks,
                                      const c10::intrusive_ptr<Options>& options) override {
        return guarded(inner_->split(store, ranks, options));
    }
    c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                      const c10::intrusive_ptr<Options>& options, const int& rank,
                                      const int& size) override {
        return guarded(inner_->merge(store, options, rank, size));
    }
    const std::string getBackendName() const override { return inner_->getBackendName(); }
    c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
    void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
    void setGroupUid(const std::string& uid) override {
        Backend::setGroupUid(uid);
        inner_->setGroupUid(uid);
    }
    void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
    std::uint64_t getSequenceNumberForGroup() override {
        return inner_->getSequenceNumberForGroup();
    }
    void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
    void abort() override { inner_->abort(); }
    void shutdown() override { inner_->shutdown(); }
    void monitoredBarrier(const c10d::BarrierOptions& options, bool waits_for_all) override {
        inner_->monitoredBarrier(options, waits_for_all);
    }

    c10::intrusive_ptr<Work> broadcast(Tensors& tensors,
                                       const c10d::BroadcastOptions& options) override {
        return begin([&] { return inner_->broadcast(tensors, options); });
    }
    c10::intrusive_ptr<Work> allreduce(Tensors& tensors,
                                       const c10d::AllreduceOptions& options) override {
        return begin([&] { return inner_->allreduce(tensors, options); });
    }
    c10::intrusive_ptr<Work> allreduce_sparse(Tensors& tensors,
                                              const c10d::AllreduceOptions& options) override {
        return begin([&] { return inner_->allreduce_sparse(tensors, options); });
    }
    c10::intrusive_ptr<Work> allreduce_coalesced(
        Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
        return begin([&] { return inner_->allreduce_coalesced(tensors, options); });
    }
    c10::intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
        return begin([&] { return inner_->reduce(tensors, options); });
    }
    c10::intrusive_ptr<Work> allgather(TensorLists& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override {
        return begin([&] { return inner_->allgather(outputs, inputs, options); });
    }
    c10::intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) override {
        return begin([&] { return inner_->_allgather_base(output, input, options); });
    }
    c10::intrusive_ptr<Work> allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) override {
        return begin([&] { return inner_->allgather_coalesced(outputs, inputs, options); });
    }
    c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(
        Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
        return begin(
            [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, options); });
    }
    c10::intrusive_ptr<Work> gather(TensorLists& outputs, Tensors& inputs,
                                    const c10d::GatherOptions& options) override {
        return begin([&] { return inner_->gather(outputs, inputs, options); });
    }
    c10::intrusive_ptr<Work> scatter(Tensors& outputs, TensorLists& inputs,
                                     const c10d::ScatterOptions& options) override {
        return begin([&] { return inner_->scatter(outputs, inputs, options); });
    }
    // Gloo has no future for these three, and their wait cannot be ended: they are not guarded.
    c10::intrusive_ptr<Work> reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                            const c10d::ReduceScatterOptions& options) override {
        loss_->check();
        return inner_->reduce_scatter(outputs, inputs, options);
    }
    c10::intrusive_ptr<Work> _reduce_scatter_base(
        at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
        loss_->check();
        return inner_->_reduce_scatter_base(output, input, options);
    }
    c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
        Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
        loss_->check();
        return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
    }
    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<std::int64_t>& output_counts,
                                           std::vector<std::int64_t>& input_counts,
                                           const c10d::AllToAllOptions& options) override {
        return begin([&] {
            return inner_->alltoall_base(output, input, output_counts, input_counts, options);
        });
    }
    c10::intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllToAllOptions& options) override {
        return begin([&] { return inner_->alltoall(outputs, inputs, options); });
    }
    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override {
        return begin([&] { return inner_->barrier(options); });
    }
    c10::intrusive_ptr<Work> send(Tensors& tensors, int to, int tag) override {
        return transfer([&] { return inner_->send(tensors, to, tag); });
    }
    c10::intrusive_ptr<Work> recv(Tensors& tensors, int from, int tag) override {
        return transfer([&] { return inner_->recv(tensors, from, tag); });
    }
    c10::intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override {
        return transfer([&] { return inner_->recvAnysource(tensors, tag); });
    }

private:
    /// Gloo uses the connection at once. If that has ended it throws an exception of its own, which
    /// is no caller's mistake; c10d's checks of the arguments throw c10::Error.
    template <typename Begin>
    c10::intrusive_ptr<Work> transfer(const Begin& begin) {
        loss_->check();
        try {
            return c10::make_intrusive<GuardedTransfer>(begin(), loss_, abandoned_);
        } catch (const c10::Error&) {
            throw;
        } catch (const std::exception& failure) {
            C10_THROW_ERROR(DistNetworkError, failure.what());
        }
    }

    template <typename Begin>
    c10::intrusive_ptr<Work> begin(const Begin& begin) {
        loss_->check();
        return c10::make_intrusive<GuardedWork>(begin(), loss_);
    }

    /// A part of this group: its collectives fail with this group's loss.
    c10::intrusive_ptr<Backend> guarded(c10::intrusive_ptr<Backend> part) {
        if (part) {
            part = c10::make_intrusive<GuardedBackend>(std::move(part), loss_);
        }
        return part;
    }

    c10::intrusive_ptr<c10d::Backend> inner_;
    std::shared_ptr<Loss> loss_;
    std::shared_ptr<Abandoned> abandoned_ = std::make_shared<Abandoned>();
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_guarded(c10::intrusive_ptr<c10d::Backend> backend,
                                               std::shared_ptr<Loss> loss) {
    return c10::make_intrusive<GuardedBackend>(std::move(backend), std::move(loss));
}

}  // namespace ddprun::worker
