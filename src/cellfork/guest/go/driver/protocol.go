package main

import (
	"encoding/json"
	"os"
	"sync"
)

// request asks for one cell to be run, with variables of the environment that hold for its time.
type request struct {
	Token string            `json:"token"`
	Code  string            `json:"code"`
	Envs  map[string]string `json:"envs"`
}

// answer is one of three: "begun" (from now on an interrupt reaches the cell), "display", "done".
type answer struct {
	Op        string            `json:"op"`
	Token     string            `json:"token"`
	Data      map[string][]byte `json:"data,omitempty"` // MIME type to content; base64 in JSON
	Main      bool              `json:"main,omitempty"`
	Status    string            `json:"status,omitempty"`
	Name      string            `json:"name,omitempty"`
	Value     string            `json:"value,omitempty"`
	Traceback string            `json:"traceback,omitempty"`
}

// answers writes answers for the cell that runs; goroutines of cells may do so at the same time.
type answers struct {
	mutex sync.Mutex
	file  *os.File
	token string
}

func newAnswers(file *os.File) *answers { return &answers{file: file} }

func (a *answers) begin(token string) {
	a.mutex.Lock()
	a.token = token
	a.mutex.Unlock()
	a.send(answer{Op: "begun"})
}

func (a *answers) display(data map[string][]byte, main bool) {
	a.send(answer{Op: "display", Data: data, Main: main})
}

func (a *answers) send(one answer) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	one.Token = a.token
	line, err := json.Marshal(one)
	if err == nil {
		_, err = a.file.Write(append(line, '\n'))
	}
	if err != nil {
		os.Exit(1) // nobody would ever learn what this process does
	}
}
