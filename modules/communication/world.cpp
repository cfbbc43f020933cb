module;
#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.mesh;
import tessera.device;
import tessera.ranks;
import :buffer;
import :communicator;
import :device_communicators;
import :state;
import :world;

namespace tessera::collective {
namespace {

// A thread of the thread transport has its own world, every other thread the process's.
struct ThreadState {
  World* world = nullptr;
  bool works_beside = false;
};
thread_local constinit ThreadState thread_state;
std::atomic<World*> world_of_process{nullptr};

constexpr std::size_t lone_arena = std::size_t{1} << 36;  // address space, not memory

std::unique_ptr<World> make_lone(int rank, int size, Transport transport) {
  auto region = Region::create(lone_arena, false);
  Control::create(*region, 1);
  return std::make_unique<World>(
      RankPlace{.region = std::move(region), .rank = rank, .size = size, .transport = transport});
}

}  // namespace

World::World(const RankPlace& place) : state_(std::make_shared<WorldState>(place)) {
  if (transport() == Transport::threads) {
    thread_state.world = this;
  } else if (transport() == Transport::fake && world_of_process.load() != nullptr) {
    // A simulated world, which is for planning, does not replace the real one.
  } else {
    world_of_process.store(this);
  }
}

World::~World() {
  if (thread_state.world == this) {
    thread_state.world = nullptr;
  }
  World* self = this;
  world_of_process.compare_exchange_strong(self, nullptr);
  state_->close();
}

std::unique_ptr<World> World::single() { return make_lone(0, 1, Transport::single); }

std::unique_ptr<World> World::fake(int rank, int size) {
  if (rank < 0 || rank >= size) {
    fail_input({.thing = "world",
                .wrong = "the simulated rank must be at least 0 and below the simulated size"});
  }
  return make_lone(rank, size, Transport::fake);
}

World& World::current() {
  if (thread_state.world != nullptr) {
    return *thread_state.world;
  }
  if (World* world = world_of_process.load()) {
    return *world;
  }
  // Leaked: tensors may use it while statics are destroyed.
  static World* const alone = single().release();
  World* none = nullptr;
  world_of_process.compare_exchange_strong(none, alone);
  return *world_of_process.load();
}

bool works_beside_steps() { return thread_state.works_beside; }

RankContext::RankContext() : world_(&World::current()), rank_(current_rank()) {}

RankContext::Scope::Scope(const RankContext& context, bool beside)
    : before_(std::exchange(thread_state.world, context.world_)),
      rank_before_(current_rank()),
      beside_before_(std::exchange(thread_state.works_beside, beside)) {
  set_current_rank(context.rank_);
}
RankContext::Scope::~Scope() {
  thread_state.works_beside = beside_before_;
  set_current_rank(rank_before_);
  thread_state.world = before_;
}

int World::rank() const { return state_->rank; }
int World::size() const { return state_->size; }
int World::ranks_here() const { return state_->ranks_here; }
int World::number_here() const { return state_->number_here; }
Transport World::transport() const { return state_->transport; }

Communicator& World::communicator(std::span<const int> ranks, std::string_view name) {
  return state_->communicator(ranks, name);
}

Communicator* World::communicator_on(Device device, std::span<const int> ranks,
                                     std::string_view name) {
  return state_->devices->find(device, ranks, name);
}

Communicator& World::everyone() { return state_->everyone(); }

SharedBuffer World::allocate(std::size_t bytes) { return state_->allocate_buffer(bytes); }

std::shared_ptr<void> World::allocate_for_peers(std::size_t bytes) {
  return state_->allocate_for_peers(bytes);
}

bool World::peers_reach(const void* data) const {
  return size() > 1 && state_->region->contains(data);
}

namespace {

[[maybe_unused]] const bool installed = [] {
  set_memory_for_peers([](std::size_t bytes) -> std::shared_ptr<void> {
    World* const world =
        thread_state.world != nullptr ? thread_state.world : world_of_process.load();
    return world == nullptr ? nullptr : world->allocate_for_peers(bytes);
  });
  set_device_wait([]() -> std::unique_ptr<DeviceWait> {
    const World* const world =
        thread_state.world != nullptr ? thread_state.world : world_of_process.load();
    return world == nullptr || world->size() == 1 ? nullptr : world->watch_device_wait();
  });
  return true;
}();

}  // namespace

void World::set_progress(std::int64_t step, std::string_view where) {
  RankRecord& own = state_->own_record();
  own.step.store(step, std::memory_order_relaxed);
  own.where.store(where);
}

void World::tell_waits(std::int64_t step) {
  state_->own_record().waits.store(
      {.step = step, .nanoseconds = state_->waited_nanoseconds.load(std::memory_order_relaxed)});
}

RankWaits World::waits_of(int rank) const {
  const ReportedWaits::StepWaits told = transport() == Transport::fake
                                            ? state_->own_record().waits.load()
                                            : state_->control->ranks()[rank].waits.load();
  return {.step = told.step, .seconds = static_cast<double>(told.nanoseconds) * 1e-9};
}

std::string World::machine_of(int rank) const {
  if (state_->bridge == nullptr) {
    return "";
  }
  const Machines& machines = state_->bridge->machines();
  return machines.names[static_cast<std::size_t>(machines.of_rank[static_cast<std::size_t>(rank)])];
}

bool World::publish_error(std::string_view text, ErrorKind kind) {
  return state_->control->publish_error(rank(), text, kind);
}

bool World::failed() const { return state_->control->failed.load() != 0; }
void World::throw_if_failed() const { state_->throw_if_failed(); }
FirstError World::first_error() const { return state_->control->first_error(); }

bool World::interrupt_requested() const {
  if (wrote_to_closed_pipe()) {
    state_->control->interrupts.store(1);
  }
  return state_->control->interrupts.load(std::memory_order_relaxed) != 0;
}
bool World::interrupt_agreed() {
  const std::int32_t mine = interrupt_requested() ? 1 : 0;
  std::int32_t any = mine;
  everyone().all_reduce(&mine, &any, 1, DType::i32, ReduceOp::max);
  return any != 0;
}
void World::request_interrupt() { state_->control->interrupts.store(1); }

std::unique_ptr<DeviceWait> World::watch_device_wait() const { return state_->watch_device_wait(); }

bool World::background() const { return state_->background; }
void World::set_background(bool background) { state_->background = background; }

void World::set_device_collectives(DeviceCollectives how) { state_->device_collectives = how; }

void World::set_timeout(double seconds) { state_->timeout = seconds; }

std::string World::recent_calls(int calls_per_rank) const {
  return state_->control->recent_calls(*state_->region, calls_per_rank);
}

}  // namespace tessera::collective
