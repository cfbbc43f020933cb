module tessera.stores:opened_state;

import tessera.base;
import :address;
import :attempts;
import :opened;
import :store;
import :store_error;

namespace tessera::stores {

/// A store that is open, and what has happened in it.
class OpenStore::State {
 public:
  State(Address address, StoreRules rules);

  /// Calls `request(reader, name in the store)` until it succeeds, or its failure is final.
  template <class Request>
  auto call(const std::string& name, const Request& request) {
    Attempts attempts(rules_);
    for (;;) {
      try {
        count_request(attempts);
        return request(reader(), name_of(name));
      } catch (const StoreError& failure) {
        retry(attempts, name, failure);
      }
    }
  }
  /// Counts a try.
  void count_request(const Attempts& attempts);
  /// Attempts::after, with the failure's text completed: what it is about, what to do.
  void retry(Attempts& attempts, const std::string& name, const StoreError& failure) const;
  [[noreturn]] void fail_with(StoreFailure failure, const std::string& name, std::string wrong,
                              std::string advice = "") const;
  /// Error (wrong_answer): the hashes are none.
  void check_facts(const std::string& name, const ObjectFacts& facts) const;

  StoreReader& reader() const;
  /// Null: the store has no lists.
  StoreLister* lister() const;
  /// Null: the store can only be read.
  StoreWriter* writer() const;
  /// The name in the store of a name relative to the address.
  std::string name_of(const std::string& name) const;
  /// The other way round; error (wrong_answer): it is not below the address.
  std::string relative_name(const std::string& name, const std::string& folder) const;

  const Address& address() const { return address_; }
  const StoreRules& rules() const { return rules_; }
  StoreCounts counts() const;
  void count_read(std::size_t bytes);
  void count_written(std::size_t bytes);

 private:
  ErrorFields completed(const std::string& name, const StoreError& failure) const;

  Address address_;
  StoreRules rules_;
  std::unique_ptr<StoreScheme> scheme_;
  std::optional<StorePlace> place_;
  std::atomic<std::uint64_t> requests_ = 0;
  std::atomic<std::uint64_t> repeated_ = 0;
  std::atomic<std::uint64_t> bytes_read_ = 0;
  std::atomic<std::uint64_t> bytes_written_ = 0;
};

}  // namespace tessera::stores
