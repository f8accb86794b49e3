import grpc,sys,time,os,signal,threading,queue,subprocess
from concurrent import futures
sys.path.insert(0,os.path.dirname(os.path.abspath(__file__))); from wire import *
PORT,RELAY=int(sys.argv[1]),int(sys.argv[2])
go=threading.Event()
def big():
    return f(2,f(3,'b')+f(1,'v1')+f(2,any_(CDS,f(1,'b')+f(99,b'x'*12000000))))+f(4,CDS)+f(5,'2')
class H(grpc.GenericRpcHandler):
    def service(self,d):
        if d.method.endswith('DeltaAggregatedResources'):
            return grpc.stream_stream_rpc_method_handler(self.delta)
    def delta(self,it,ctx):
        q=queue.Queue()
        def read():
            try:
                for r in it:
                    p=parse(r); subs=[v.decode() for k,v in p if k==3]
                    print('origin got',[ (k,v[:30]) for k,v in p if k in(3,4,6)],flush=True)
                    if 'a' in subs: q.put(delta_resp(CDS,'1',[('a','v1')])); threading.Thread(target=lambda:(go.wait(),q.put(big()))).start()
            except Exception as e: print('end',e)
            q.put(None)
        threading.Thread(target=read,daemon=True).start()
        while True:
            x=q.get()
            if x is None: return
            yield x
s=grpc.server(futures.ThreadPoolExecutor(20)); s.add_generic_rpc_handlers((H(),)); s.add_insecure_port(f'127.0.0.1:{PORT}'); s.start()
cfg=f'/tmp/stop.yaml'
open(cfg,'w').write(f'node: {{id: r}}\nupstream:\n  servers: [{{uri: "http://127.0.0.1:{PORT}"}}]\ndownstream:\n  listeners: [{{address: "127.0.0.1:{RELAY}"}}]\nadmin: {{address: "127.0.0.1:{RELAY+1}"}}\n')
p=subprocess.Popen(['target/debug/deltafan','serve','--config',cfg],stderr=open('/tmp/stop.log','w'))
time.sleep(1.5)
results={}
def client(i):
    ch=grpc.insecure_channel(f'127.0.0.1:{RELAY}',options=[('grpc.use_local_subchannel_pool',1),('grpc.max_receive_message_length',-1)])
    m=ch.stream_stream('/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources')
    q=queue.Queue()
    def gen():
        yield f(1,'old-version')+f(2,f(1,f'c{i}'))+f(3,'a')+f(3,'b')+f(4,CDS)
        while True: yield q.get()
    try:
        for r in m(gen(),timeout=40):
            pr=parse(r); names=[]
            for k,v in pr:
                if k==2:
                    names.append(parse(dict(parse(v))[2])[0][1].decode())
            ver=dict(pr)[1]; nonce=dict(pr)[5]
            results.setdefault(i,[]).append((round(time.time()-t0,2),names))
            q.put(f(1,ver)+f(3,'a')+f(3,'b')+f(4,CDS)+f(5,nonce))
    except Exception as e: pass
t0=time.time()
for i in range(3): threading.Thread(target=client,args=(i,),daemon=True).start()
time.sleep(2)
print('stop',time.time()-t0); os.kill(p.pid,signal.SIGSTOP)
time.sleep(.5); go.set(); time.sleep(12)
print('cont',time.time()-t0); os.kill(p.pid,signal.SIGCONT)
time.sleep(4)
for i,r in sorted(results.items()): print(i,r)
p.terminate(); os._exit(0)
