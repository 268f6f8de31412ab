// A client on one connection, for tests that look at every byte. Boost.Beast reads the answers, so that what is not
// HTTP/1.1 is an error here too.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hadal::test {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Answer {
  int status = 0;                              // 0: the connection ended without one
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool chunked = false;
};

class Client {
 public:
  // `receive_buffer`: bytes that the kernel takes for us; 0: what is usual.
  explicit Client(int port, int receive_buffer = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // False if the server has closed the connection.
  bool Send(std::string_view bytes);
  // The next answer, all of it. To a HEAD: without its body.
  Answer Read(bool to_head = false);
  // The head of the next answer, and then its body as it comes; "" at the end.
  Answer ReadHead();
  std::string ReadSome();
  // Whether the server has closed, waiting for that or for something to read.
  bool Closed();
  void ShutdownSend();
  void Close();

  Answer Get(const std::string& target, const Headers& headers = {});
  Answer Post(const std::string& target, const std::string& body, const Headers& headers = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A request as text. A body has a length and, unless a header says it, the type of JSON.
std::string RequestText(const std::string& method, const std::string& target, const std::string& body = "",
                        const Headers& headers = {});

}  // namespace hadal::test
