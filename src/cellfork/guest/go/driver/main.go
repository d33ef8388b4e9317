// Command cellfork-go evaluates cells of Go for cellfork's Go kernel, and keeps their state.
//
// It reads requests from descriptor 3 and writes answers to descriptor 4, one JSON object a line (see protocol.go).
// What cells print goes to descriptors 1 and 2, straight into the pipes that the sandbox's init reads.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
)

const (
	requestsFD = 3
	answersFD  = 4
	// maxStack ends code that recurses without end before it has taken the sandbox's memory.
	maxStack = 128 << 20
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println(strings.TrimPrefix(runtime.Version(), "go"))
		return
	}
	for _, fd := range []int{requestsFD, answersFD} {
		syscall.CloseOnExec(fd)
	}
	debug.SetMaxStack(maxStack)
	os.Unsetenv("GOTRACEBACK") // it was set for this process: what ends it is told in a line, without its own stack
	log.SetOutput(io.Discard)  // the interpreter's words about itself; the cell's own log goes elsewhere
	interrupts := make(chan os.Signal, 8)
	signal.Notify(interrupts, os.Interrupt)
	answers := newAnswers(os.NewFile(answersFD, "answers"))
	session := newSession(answers, interrupts)
	requests := bufio.NewReaderSize(os.NewFile(requestsFD, "requests"), 1<<16)
	for {
		line, err := requests.ReadBytes('\n')
		if err != nil {
			os.Exit(0) // the kernel is gone
		}
		var request request
		if err := json.Unmarshal(line, &request); err != nil {
			os.Exit(1)
		}
		session.run(request)
	}
}
