// A running `hadal serve` with the bundled model.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "http_client.h"

namespace hadal::test {

using nlohmann::json;

class ServerProcess {
 public:
  // Waits until it listens. `args` stand behind the model.
  explicit ServerProcess(const std::vector<std::string>& args = {});
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  int port() const { return port_; }
  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  // The exit code; 1000 + signal if one ended it.
  int Wait();
  // What it has said on stderr so far.
  std::string Said() const;

  // A value of /metrics by the beginning of its line.
  double Metric(const std::string& name, const Headers& headers = {}) const;
  // Waits up to a minute for a metric to have a value.
  bool WaitForMetric(const std::string& name, double value) const;

 private:
  pid_t pid_ = -1;
  int port_ = 0;
  int out_ = -1;
  std::string err_path_;
};

// One for all tests that need nothing special, with four requests at once.
ServerProcess& Shared();

// A chat that does not think, greedy.
json Chat(const std::string& question);
// Data of the events of a stream, in order; the last must be [DONE], which is left out.
std::vector<json> EventsOf(const std::string& body);
// The whole answer that the events of a stream make, as it would have come without `stream`: as far as that can be told
// (no ids, no created).
json Reassembled(const std::vector<json>& events);

}  // namespace hadal::test
