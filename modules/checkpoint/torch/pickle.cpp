module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import :pickle;

namespace tessera::checkpoint_detail {

using Kind = PickleValue::Kind;

namespace {

// What the values of a pickle may take: PyTorch's own take up to 30 bytes for each of the file (its
// smallest values, None and small integers, exist once), and an index has no more than this.
constexpr std::size_t bytes_for_each = 40;
constexpr std::size_t bytes_at_least = std::size_t{1} << 20;
constexpr std::size_t bytes_at_most = std::size_t{16} << 30;

/// Whether a name is one of those in the pickles of torch.distributed.checkpoint and of
/// torch.save(tensor).
bool is_known(std::string_view name) {
  constexpr std::string_view metadata = "torch.distributed.checkpoint.metadata ";
  if (name.starts_with(metadata)) {
    name.remove_prefix(metadata.size());
    constexpr std::array<std::string_view, 8> classes = {
        "Metadata",         "TensorStorageMetadata", "BytesStorageMetadata",
        "TensorProperties", "ChunkStorageMetadata",  "MetadataIndex",
        "StorageMeta",      "_MEM_FORMAT_ENCODING"};
    return std::ranges::find(classes, name) != classes.end();
  }
  constexpr std::array<std::string_view, 34> others = {
      "torch.distributed.checkpoint.filesystem _StorageInfo",
      "torch.serialization _get_layout",
      "torch._utils _rebuild_tensor_v2",
      "torch._utils _rebuild_tensor_v3",
      "collections OrderedDict",
      "pathlib PosixPath",
      "pathlib PurePosixPath",
      "pathlib WindowsPath",
      "pathlib._local PosixPath",
      "pathlib._local WindowsPath",
      "torch Size",
      "torch strided",
      "torch float32",
      "torch float64",
      "torch bfloat16",
      "torch float16",
      "torch int64",
      "torch int32",
      "torch uint8",
      "torch bool",
      "torch int16",
      "torch int8",
      "torch float8_e4m3fn",
      "torch float8_e5m2",
      "torch FloatStorage",
      "torch DoubleStorage",
      "torch BFloat16Storage",
      "torch HalfStorage",
      "torch LongStorage",
      "torch IntStorage",
      "torch ByteStorage",
      "torch CharStorage",
      "torch BoolStorage",
      "torch.storage UntypedStorage"};
  return std::ranges::find(others, name) != others.end();
}

}  // namespace

/// The stack machine that pickles are programs of, without its instructions that call anything.
class Unpickler {
 public:
  Unpickler(Pickle& pickle, std::span<const std::byte> bytes, const std::string& where)
      : pickle_(pickle),
        bytes_(bytes),
        where_(where),
        room_(bytes_at_least +
              std::min(bytes.size(), bytes_at_most / bytes_for_each) * bytes_for_each) {
    none_ = make(Kind::none);
    empty_ = make(Kind::tuple);
    for (std::size_t i = 0; i < small_.size(); ++i) {
      small_[i] = make(Kind::integer);
      small_[i]->integer = static_cast<std::int64_t>(i);
    }
    for (std::size_t i = 0; i < flags_.size(); ++i) {
      flags_[i] = make(Kind::boolean);
      flags_[i]->integer = static_cast<std::int64_t>(i);
    }
  }

  const PickleValue* run() {
    while (true) {
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') {
        PickleValue* const root = pop();
        if (!stack_.empty() || !marks_.empty()) {
          wrong("values are left when it ends");
        }
        return root;
      }
      step(code);
    }
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    fail_input({.thing = where_,
                .wrong = fmt::format("the pickle is not one of PyTorch's checkpoints: {} (byte {})",
                                     what, at_),
                .advice = "use another checkpoint"});
  }

  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      wrong("it is cut");
    }
    const auto part = bytes_.subspan(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return part;
  }
  /// A little-endian number of so many bytes.
  std::uint64_t number(std::size_t bytes) {
    const auto part = take(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= std::to_integer<std::uint64_t>(part[i]) << (8 * i);
    }
    return value;
  }
  std::string text(std::uint64_t count) {
    const auto part = take(count);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::string line() {
    std::string result;
    while (true) {
      const auto c = static_cast<char>(take(1)[0]);
      if (c == '\n') {
        return result;
      }
      result += c;
    }
  }

  /// Memory that values take, those on the stack and in the memo too. It is never given back.
  void charge(std::size_t bytes) {
    if (bytes > room_) {
      wrong("its values take more memory than an index of its size needs");
    }
    room_ -= bytes;
  }
  PickleValue* make(Kind kind) {
    charge(sizeof(PickleValue));
    pickle_.values_.push_back({.kind = kind});
    return &pickle_.values_.back();
  }
  /// The items that a value gets.
  void set_items(PickleValue* value, std::vector<const PickleValue*> items) {
    charge(items.size() * sizeof(items[0]));
    value->items = std::move(items);
  }
  void push(PickleValue* value) {
    if (stack_.size() == stack_.capacity()) {  // it doubles
      charge(std::max<std::size_t>(stack_.size(), 1) * sizeof(stack_[0]));
    }
    stack_.push_back(value);
  }
  PickleValue* pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      wrong("an instruction lacks its operand");
    }
    PickleValue* const value = stack_.back();
    stack_.pop_back();
    return value;
  }
  std::vector<const PickleValue*> pop_to_mark() {
    if (marks_.empty()) {
      wrong("an instruction lacks its mark");
    }
    std::vector<const PickleValue*> items(
        stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void push_tuple(std::size_t count) {
    std::vector<const PickleValue*> items(count);
    for (std::size_t i = count; i > 0; --i) {
      items[i - 1] = pop();
    }
    PickleValue* const tuple = count == 0 ? empty_ : make(Kind::tuple);
    set_items(tuple, std::move(items));
    push(tuple);
  }
  void push_integer(std::int64_t value) {
    PickleValue* const integer = make(Kind::integer);
    integer->integer = value;
    push(integer);
  }
  void push_text(std::string value) {
    PickleValue* const made = make(Kind::text);
    charge(value.size());
    made->text = std::move(value);
    push(made);
  }
  void push_global(std::string name) {
    if (!is_known(name)) {
      wrong(fmt::format("it names '{}'", name.substr(0, 100)));
    }
    PickleValue* const global = make(Kind::global);
    global->text = std::move(name);
    push(global);
  }
  PickleValue* top_of(Kind kind) {
    PickleValue* const value = pop();
    if (value->kind != kind) {
      wrong("an operand has the wrong type");
    }
    push(value);
    return value;
  }
  void append(Kind kind, const std::vector<const PickleValue*>& items) {
    PickleValue* const into = top_of(kind);
    if (kind == Kind::dict && items.size() % 2 != 0) {
      wrong("a key has no value");
    }
    charge(2 * items.size() * sizeof(items[0]));  // it may have room for twice as many
    into->items.insert(into->items.end(), items.begin(), items.end());
  }
  void push_object() {
    const PickleValue* const arguments = pop();
    const PickleValue* const type = pop();
    if (type->kind != Kind::global || arguments->kind != Kind::tuple) {
      wrong("an object has no type");
    }
    PickleValue* const object = make(Kind::object);
    object->type = type;
    set_items(object, arguments->items);
    push(object);
  }
  void get(std::uint64_t place) {
    if (place >= memo_.size() || memo_[place] == nullptr) {
      wrong("it uses a value that was not kept");
    }
    push(memo_[place]);
  }
  void put(std::uint64_t place) {
    if (place > memo_.size() + 1000) {
      wrong("a value is kept at a wrong place");
    }
    if (place >= memo_.size()) {
      charge(2 * (place + 1 - memo_.size()) * sizeof(memo_[0]));
      memo_.resize(place + 1);
    }
    memo_[place] = pop();
    push(memo_[place]);
  }

  void step(unsigned char code) {
    switch (code) {
      case 0x80:  // PROTO
        if (number(1) > 5) {
          wrong("its protocol is above 5");
        }
        return;
      case 0x95:  // FRAME
        number(8);
        return;
      case '(':
        charge(2 * sizeof(marks_[0]));
        marks_.push_back(stack_.size());
        return;
      case 'N':
        return push(none_);
      case 0x88:
      case 0x89:
        return push(flags_[code == 0x88 ? 1 : 0]);
      case 'J':
        return push_integer(static_cast<std::int32_t>(number(4)));
      case 'K':
        return push(small_[number(1)]);
      case 'M':
        return push_integer(static_cast<std::int64_t>(number(2)));
      case 0x8a: {  // LONG1: two's complement
        const std::size_t bytes = number(1);
        if (bytes > 8) {
          wrong("an integer has more than 64 bits");
        }
        const std::uint64_t value = number(bytes);
        const unsigned unused = bytes == 0 ? 0 : static_cast<unsigned>(64 - 8 * bytes);
        return push_integer(static_cast<std::int64_t>(value << unused) >> unused);
      }
      case 'G': {  // big-endian
        const std::uint64_t little = number(8);
        PickleValue* const value = make(Kind::real);
        value->real = std::bit_cast<double>(__builtin_bswap64(little));
        return push(value);
      }
      case 0x8c:
        return push_text(text(number(1)));
      case 'X':
        return push_text(text(number(4)));
      case 0x8d:
        return push_text(text(number(8)));
      case ')':
        return push_tuple(0);
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(code - 0x84U);
      case 't': {
        PickleValue* const tuple = make(Kind::tuple);
        set_items(tuple, pop_to_mark());
        return push(tuple);
      }
      default:
        return step_of_containers(code);
    }
  }

  void step_of_containers(unsigned char code) {
    switch (code) {
      case ']':
        return push(make(Kind::list));
      case '}':
        return push(make(Kind::dict));
      case 'a': {
        const PickleValue* const item = pop();
        return append(Kind::list, {item});
      }
      case 'e': {
        const auto items = pop_to_mark();
        return append(Kind::list, items);
      }
      case 's': {
        const PickleValue* const value = pop();
        const PickleValue* const key = pop();
        return append(Kind::dict, {key, value});
      }
      case 'u': {
        const auto items = pop_to_mark();
        return append(Kind::dict, items);
      }
      case 'c': {
        const std::string module = line();
        return push_global(module + " " + line());
      }
      case 0x93: {  // STACK_GLOBAL
        const std::string name = top_of(Kind::text)->text;
        pop();
        const std::string module = top_of(Kind::text)->text;
        pop();
        return push_global(module + " " + name);
      }
      case 0x81:  // NEWOBJ: type.__new__(type, *arguments)
      case 'R':   // type(*arguments)
        return push_object();
      case 'b': {
        const PickleValue* const state = pop();
        top_of(Kind::object)->state = state;
        return;
      }
      case 'Q': {
        const PickleValue* const identity = pop();
        PickleValue* const value = make(Kind::persistent);
        set_items(value, {identity});
        return push(value);
      }
      case 0x94:  // MEMOIZE
        return put(memo_.size());
      case 'q':
        return put(number(1));
      case 'r':
        return put(number(4));
      case 'h':
        return get(number(1));
      case 'j':
        return get(number(4));
      default:
        wrong(fmt::format("it has the instruction 0x{:02x}", code));
    }
  }

  Pickle& pickle_;
  std::span<const std::byte> bytes_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::size_t room_;  // for values, in bytes
  // Those that are made once, as in Python.
  PickleValue* none_ = nullptr;
  PickleValue* empty_ = nullptr;
  std::array<PickleValue*, 2> flags_ = {};
  std::array<PickleValue*, 256> small_ = {};
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::vector<PickleValue*> memo_;
};

bool PickleValue::is_a(std::string_view name) const {
  return kind == Kind::object && type->text == name;
}

const PickleValue* PickleValue::find(std::string_view key) const {
  for (std::size_t i = 0; kind == Kind::dict && i + 1 < items.size(); i += 2) {
    if (items[i]->kind == Kind::text && items[i]->text == key) {
      return items[i + 1];
    }
  }
  return nullptr;
}

Pickle::Pickle(std::span<const std::byte> bytes, const std::string& where) {
  root_ = Unpickler(*this, bytes, where).run();
}

}  // namespace tessera::checkpoint_detail
