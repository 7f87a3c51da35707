// SPDX-License-Identifier: MIT OR Apache-2.0
// Collectives of gloo between two processes over its transport on libibverbs, with a check of all data. gloo's algorithms on that
// transport are those with buffers of their own: allreduce, allgather, broadcast, barrier.
//
//   gloo_ring -d DEVICE -g GID_INDEX -p PORT [-n COUNT] [HOST]
//
// The process without HOST has rank 0. Both have their keys in a folder that it makes, whose name it sends by TCP.
#include <gloo/allgather_ring.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <netdb.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using Words = std::vector<uint64_t>;

const size_t SIZES[] = {1, 100, 10'000, 100'000};
// gloo does not wait for the completions of its last sends, and the destructor of a buffer throws if one is pending. So the
// algorithms live until the end, some time after a barrier.
const auto COMPLETIONS = std::chrono::milliseconds(200);

int rank;
std::vector<std::unique_ptr<gloo::Algorithm>> algorithms;
gloo::Algorithm* barrier;

// Memory that lives as long as the algorithms.
std::vector<std::unique_ptr<Words>> memory;

Words& wordsOf(size_t size) {
  memory.push_back(std::make_unique<Words>(size));
  return *memory.back();
}

template <typename Algorithm, typename... Args>
gloo::Algorithm& make(Args... args) {
  algorithms.push_back(std::make_unique<Algorithm>(args...));
  return *algorithms.back();
}

uint64_t wordOf(int from, int round, size_t at) {
  return (from + 1) * 1'000'003ull + round * 101ull + at * 7ull;
}

void fill(Words& words, int from, int round) {
  for (size_t at = 0; at < words.size(); at++) {
    words[at] = wordOf(from, round, at);
  }
}

void check(bool isTrue, const std::string& what) {
  if (!isTrue) {
    throw std::runtime_error("wrong: " + what);
  }
}

// The folder, made by rank 0 and told to rank 1.
std::string folderByTcp(const char* host, const char* port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = host ? 0 : AI_PASSIVE;
  addrinfo* found;
  check(getaddrinfo(host, port, &hints, &found) == 0, "an address");
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> address(found, freeaddrinfo);
  int fd = socket(found->ai_family, found->ai_socktype, 0);
  check(fd >= 0, "a socket");
  char name[] = "/tmp/gloo_ring.XXXXXX";
  if (host) {
    check(connect(fd, found->ai_addr, found->ai_addrlen) == 0, "a connection");
    check(recv(fd, name, sizeof name, MSG_WAITALL) == sizeof name, "the name of the folder");
  } else {
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    check(bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0, "a listener");
    int peer = accept(fd, nullptr, nullptr);
    check(mkdtemp(name) && send(peer, name, sizeof name, 0) == sizeof name, "a folder");
    close(peer);
  }
  close(fd);
  return name;
}

// gloo of 2025 takes a shared pointer to the store, older ones a reference.
template <typename Context, typename Store, typename Device>
auto connectAll(Context& context, std::shared_ptr<Store> store, Device& device, int)
    -> decltype(context.connectFullMesh(store, device)) {
  return context.connectFullMesh(store, device);
}

template <typename Context, typename Store, typename Device>
void connectAll(Context& context, std::shared_ptr<Store> store, Device& device, long) {
  context.connectFullMesh(*store, device);
}

template <typename Algorithm>
void allreduce(const std::string& name, std::shared_ptr<gloo::Context> context, int count) {
  for (size_t size : SIZES) {
    auto& words = wordsOf(size);
    auto& algorithm = make<Algorithm>(context, std::vector<uint64_t*>{words.data()}, size);
    for (int round = 0; round < count; round++) {
      fill(words, rank, round);
      algorithm.run();
      for (size_t at = 0; at < size; at++) {
        check(words[at] == wordOf(0, round, at) + wordOf(1, round, at), name);
      }
    }
  }
  std::cout << "ok: " << name << std::endl;
}

void allgather(std::shared_ptr<gloo::Context> context, int count) {
  for (size_t size : SIZES) {
    auto& own = wordsOf(size);
    auto& all = wordsOf(2 * size);
    auto& algorithm = make<gloo::AllgatherRing<uint64_t>>(
        context, std::vector<const uint64_t*>{own.data()}, all.data(), int(size));
    for (int round = 0; round < count; round++) {
      fill(own, rank, round);
      algorithm.run();
      for (size_t at = 0; at < 2 * size; at++) {
        check(all[at] == wordOf(at / size, round, at % size), "allgather");
      }
      // The other rank writes to this one's memory in the next round.
      barrier->run();
    }
  }
  std::cout << "ok: allgather" << std::endl;
}

void broadcast(std::shared_ptr<gloo::Context> context, int count) {
  for (size_t size : SIZES) {
    auto& words = wordsOf(size);
    auto& algorithm = make<gloo::BroadcastOneToAll<uint64_t>>(
        context, std::vector<uint64_t*>{words.data()}, size, 1);
    for (int round = 0; round < count; round++) {
      fill(words, rank, round);
      algorithm.run();
      for (size_t at = 0; at < size; at++) {
        check(words[at] == wordOf(1, round, at), "broadcast");
      }
      // The other rank writes to this one's memory in the next round.
      barrier->run();
    }
  }
  std::cout << "ok: broadcast" << std::endl;
}

void run(int argc, char** argv) {
  gloo::transport::ibverbs::attr attr{};
  attr.port = 1;
  const char* port = "29500";
  int count = 5;
  for (int option; (option = getopt(argc, argv, "d:g:p:n:")) != -1;) {
    switch (option) {
      case 'd': attr.name = optarg; break;
      case 'g': attr.index = atoi(optarg); break;
      case 'p': port = optarg; break;
      case 'n': count = atoi(optarg); break;
      default: throw std::runtime_error("usage");
    }
  }
  const char* host = argv[optind];
  rank = host ? 1 : 0;
  auto folder = folderByTcp(host, port);
  auto store = std::make_shared<gloo::rendezvous::FileStore>(folder);
  auto device = gloo::transport::ibverbs::CreateDevice(attr);
  {
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
    connectAll(*context, store, device, 0);
    std::shared_ptr<gloo::Context> base = context;
    barrier = &make<gloo::BarrierAllToAll>(base);
    for (int round = 0; round < count; round++) {
      barrier->run();
    }
    std::cout << "ok: barrier" << std::endl;
    allreduce<gloo::AllreduceRing<uint64_t>>("allreduce, ring", base, count);
    allreduce<gloo::AllreduceRingChunked<uint64_t>>("allreduce, chunked ring", base, count);
    allreduce<gloo::AllreduceHalvingDoubling<uint64_t>>("allreduce, halving", base, count);
    allgather(base, count);
    broadcast(base, count);
    barrier->run();
    std::this_thread::sleep_for(COMPLETIONS);
    algorithms.clear();
  }
  if (rank == 0) {
    std::filesystem::remove_all(folder);
  }
}

} // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "gloo_ring: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
