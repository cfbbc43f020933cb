#include "fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "fault.hpp"

// Saves the registers that calls preserve and continues where `to` was saved (x86-64, System V).
extern "C" void emulator_switch(void** from, void* to);
// Follows a kernel's entry: calls the function in rbx, which fiber_begin has put there.
extern "C" void emulator_after_entry();

asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, . - emulator_switch
.globl emulator_after_entry
.hidden emulator_after_entry
.type emulator_after_entry, @function
emulator_after_entry:
  callq *%rbx
  ud2
.size emulator_after_entry, . - emulator_after_entry
)");

namespace emulator {
namespace {

/// What emulator_switch restores, the entry to which it returns, and what the entry returns to.
struct Frame {
  std::uint64_t r15, r14, r13, r12, rbx, rbp;
  Entry entry;
  void (*after)();
};

}  // namespace

Fibers::Fibers() {
  void* memory = mmap(nullptr, most_fibers * stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Fault("the emulator has no memory for the threads of a block");
  }
  memory_ = static_cast<std::byte*>(memory);
  saved_.resize(most_fibers);
}

Fibers::~Fibers() { munmap(memory_, most_fibers * stack_bytes); }

void Fibers::begin(std::size_t index, Entry entry, const void* structure, std::size_t bytes,
                   void (*end)()) {
  // The structure is aligned to 16 behind the return address.
  std::byte* top = memory_ + (index + 1) * stack_bytes - (bytes + 15) / 16 * 16;
  std::memcpy(top, structure, bytes);
  Frame frame = {};
  frame.rbx = reinterpret_cast<std::uint64_t>(end);
  frame.entry = entry;
  frame.after = emulator_after_entry;
  std::memcpy(top - sizeof(frame), &frame, sizeof(frame));
  saved_[index] = top - sizeof(frame);
}

void Fibers::run(std::size_t index) { emulator_switch(&host_, saved_[index]); }

void Fibers::leave(std::size_t index) { emulator_switch(&saved_[index], host_); }

}  // namespace emulator
